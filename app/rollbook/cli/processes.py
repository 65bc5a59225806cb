"""`rollbook serve` and `rollbook scheduler`: the processes that do the work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated

import typer

from rollbook.ledger.database import database_of
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url
from rollbook.logformat import choose_log_format
from rollbook.logs import STDOUT, log_to_stderr, say
from rollbook.settings import ApiSettings, SchedulerSettings
from rollbook.supervisor import Supervisor, stopped_by_signals

from . import options, stack
from .presence import Presence

STOPPED = "stopped"

_ENTRYPOINT_HELP = (
    "FILE.py with one workflow and at most one grader; or FILE.py:NAME or MODULE:NAME, where NAME is a backend "
    "(LocalBackend, TaskBackend) or a function without arguments that makes one."
)


def serve(
    entrypoint: Annotated[str | None, typer.Argument(help=_ENTRYPOINT_HELP, metavar="ENTRYPOINT")] = None,
    *,
    no_scheduler: Annotated[
        bool, typer.Option("--no-scheduler", help="Only take requests; `rollbook scheduler` runs elsewhere.")
    ] = False,
    runners: options.Runners = 1,
    host: options.Host = options.HOST,
    port: options.Port = options.PORT,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    queue: Annotated[
        str | None, typer.Option(help="The queue for admissions, instead of the entrypoint's name.", metavar="NAME")
    ] = None,
    api_key_env: options.ApiKeyEnv = None,
    operator_api_key_env: options.OperatorApiKeyEnv = None,
    max_queue_depth: options.MaxQueueDepth = None,
    max_attempts: options.MaxAttempts = options.MAX_ATTEMPTS,
    max_concurrent: options.MaxConcurrent = None,
    runner_memory: options.RunnerMemory = None,
    no_model_calls: options.NoModelCalls = False,
    result_wait: options.ResultWait = options.RESULT_WAIT_SEC,
    lease_timeout: options.LeaseTimeout = options.LEASE_TIMEOUT_SEC,
    on_shutdown: options.OnShutdown = "release",
    scheduler_metrics_port: options.MetricsPort = None,
    scheduler_metrics_host: options.MetricsHost = options.METRICS_HOST,
    log_format: options.LogFormatOption = "text",
) -> int:
    """Take rollouts over HTTP and run them, on one machine."""
    choose_log_format(log_format)
    if entrypoint is None and not no_scheduler:
        raise typer.BadParameter("say what to run, or pass --no-scheduler with --queue", param_hint="ENTRYPOINT")
    if no_scheduler and scheduler_metrics_port is not None:
        raise typer.BadParameter(
            "no scheduler runs here; pass --metrics-port to `rollbook scheduler`", param_hint="--scheduler-metrics-port"
        )
    options.check_times(result_wait_sec=result_wait, lease_timeout_sec=lease_timeout)
    api_key, operator_api_key = options.api_keys(api_key_env, operator_api_key_env)
    api = ApiSettings(
        database_url=database_url,
        queue=options.queue_name(queue, entrypoint),
        host=host,
        port=port,
        api_key=api_key,
        operator_api_key=operator_api_key,
        result_wait_timeout_sec=result_wait,
        polling_lease_timeout_sec=lease_timeout,
        max_queue_depth=max_queue_depth,
        max_attempts=max_attempts,
    )
    options.check_file(entrypoint)
    stack.prepare(database_url)
    if no_scheduler or entrypoint is None:
        return _serve_alone(api)
    scheduler = SchedulerSettings(
        database_url=database_url,
        entrypoint=entrypoint,
        queues=(api.queue,),
        runners=runners,
        max_concurrent=max_concurrent,
        runner_memory_bytes=None if runner_memory is None else runner_memory * options.MEBIBYTE,
        record_model_calls=not no_model_calls,
        on_shutdown=on_shutdown,
        metrics_host=scheduler_metrics_host,
        metrics_port=scheduler_metrics_port,
    )
    return asyncio.run(_serve(api, scheduler))


async def _serve(api: ApiSettings, scheduler: SchedulerSettings) -> int:
    with contextlib.closing(stack.Stack(api, scheduler)) as both:
        # Behind the API's own port, which is no other's then.
        stack.check_metrics_address(scheduler, ("--scheduler-metrics-port", "--scheduler-metrics-host"))
        async with _ending_in_order(both.supervisor, scheduler, stop=both.stop) as presence:
            # Not before a runner has loaded the entrypoint: who reads the line sends rollouts.
            return await both.run(on_ready=partial(_announce_api, api), loaded=presence.ready)


@contextlib.asynccontextmanager
async def _ending_in_order(
    supervisor: Supervisor, settings: SchedulerSettings, *, stop: Callable[[], None]
) -> AsyncIterator[Presence]:
    """End the block's processes on a signal, and tell the operator what is waited for and when it is done."""
    presence = Presence(settings.database_url, lambda: supervisor.pid(stack.SCHEDULER))
    asked = False

    told: asyncio.Task[None] | None = None

    async def tell_if_busy() -> None:
        if await presence.busy():
            _announce(f"waiting up to {settings.drain_sec:g} s for running rollouts; press Ctrl-C again to end at once")

    def end() -> None:
        nonlocal asked, told
        asked = True
        told = asyncio.get_running_loop().create_task(tell_if_busy())
        stop()

    try:
        with stopped_by_signals(stop=end, kill=supervisor.kill):
            yield presence
    finally:
        if told is not None:
            await told
        await presence.close()
        if asked:
            _announce(STOPPED)


def _serve_alone(api: ApiSettings) -> int:
    from rollbook.server.process import LOG_TEXT, run_api

    log_to_stderr(logging.WARNING, process="api", text=LOG_TEXT)
    listener = stack.listen(api.host, api.port)
    line = stack.ready_line(listener, api)

    def announce() -> None:
        asyncio.run(stack.answering(listener))
        _announce_api(api, line)

    threading.Thread(target=announce, name="announce", daemon=True).start()
    code = run_api(api, listener=listener)
    if code == 0:
        _announce(STOPPED)
    return code


def _announce_api(api: ApiSettings, line: str) -> None:
    if api.api_key is None and not options.is_loopback(api.host):
        say(f"this API has no key: whoever reaches {api.host} can use it; give it one with --api-key-env")
    _announce(line)


def _announce(line: str) -> None:
    # A stdout that is closed, or that nobody reads, is no reason for a server to end or to wait.
    say(line, descriptor=STDOUT)


def scheduler(
    entrypoint: Annotated[str, typer.Argument(help=_ENTRYPOINT_HELP, metavar="ENTRYPOINT")],
    *,
    runners: options.Runners = 1,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    queue: Annotated[
        list[str] | None,
        typer.Option(help="A queue to work on, instead of the entrypoint's name; may be repeated.", metavar="NAME"),
    ] = None,
    max_concurrent: options.MaxConcurrent = None,
    runner_memory: options.RunnerMemory = None,
    no_model_calls: options.NoModelCalls = False,
    on_shutdown: options.OnShutdown = "release",
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = options.METRICS_HOST,
    log_format: options.LogFormatOption = "text",
) -> int:
    """Run rollouts that wait in the ledger, beside `rollbook serve --no-scheduler`."""
    choose_log_format(log_format)
    queues = tuple(dict.fromkeys(options.queue_name(name, entrypoint) for name in queue or (None,)))
    settings = SchedulerSettings(
        database_url=database_url,
        entrypoint=entrypoint,
        queues=queues,
        runners=runners,
        max_concurrent=max_concurrent,
        runner_memory_bytes=None if runner_memory is None else runner_memory * options.MEBIBYTE,
        record_model_calls=not no_model_calls,
        on_shutdown=on_shutdown,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    options.check_file(entrypoint)
    stack.prepare(database_url)
    stack.check_metrics_address(settings, ("--metrics-port", "--metrics-host"))
    return asyncio.run(_schedule(settings))


async def _schedule(settings: SchedulerSettings) -> int:
    supervisor = Supervisor([stack.scheduler_child(settings)])
    async with _ending_in_order(supervisor, settings, stop=supervisor.stop) as presence:
        announcing = asyncio.create_task(_announce_scheduler(presence, settings), name="announce")
        try:
            return await supervisor.run()
        finally:
            announcing.cancel()


async def _announce_scheduler(presence: Presence, settings: SchedulerSettings) -> None:
    await presence.ready()
    queues = f"{'queue' if len(settings.queues) == 1 else 'queues'} {', '.join(settings.queues)}"
    place = database_of(parse_url(settings.database_url)).describe()
    _announce(f"scheduler ready ({queues}, entrypoint {settings.entrypoint}, ledger {place})")
