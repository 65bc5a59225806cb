"""`rollbook serve` and `rollbook scheduler`: the processes that do the work."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated

import typer

from rollbook.ledger.engines import DEFAULT_DATABASE_URL
from rollbook.settings import ApiSettings, SchedulerSettings
from rollbook.supervisor import stopped_by_signals

from . import options, output, stack

_ENTRYPOINT_HELP = "A .py file with one workflow and at most one grader, or module:name for a backend."


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
    max_queue_depth: options.MaxQueueDepth = None,
    max_attempts: options.MaxAttempts = options.MAX_ATTEMPTS,
    max_concurrent: options.MaxConcurrent = None,
    result_wait: options.ResultWait = options.RESULT_WAIT_SEC,
    lease_timeout: options.LeaseTimeout = options.LEASE_TIMEOUT_SEC,
    on_shutdown: options.OnShutdown = "release",
) -> int:
    """Take rollouts over HTTP and run them, on one machine."""
    if entrypoint is None and not no_scheduler:
        raise typer.BadParameter("say what to run, or pass --no-scheduler with --queue", param_hint="ENTRYPOINT")
    options.check_times(result_wait_sec=result_wait, lease_timeout_sec=lease_timeout)
    api = ApiSettings(
        database_url=database_url,
        queue=options.queue_name(queue, entrypoint),
        host=host,
        port=port,
        api_key=options.api_key(api_key_env),
        result_wait_timeout_sec=result_wait,
        polling_lease_timeout_sec=lease_timeout,
        max_queue_depth=max_queue_depth,
        max_attempts=max_attempts,
    )
    stack.prepare(database_url)
    if no_scheduler or entrypoint is None:
        return _serve_alone(api)
    scheduler = SchedulerSettings(
        database_url=database_url,
        entrypoint=entrypoint,
        queues=(api.queue,),
        runners=runners,
        max_concurrent=max_concurrent,
        on_shutdown=on_shutdown,
    )
    return asyncio.run(_serve(api, scheduler))


async def _serve(api: ApiSettings, scheduler: SchedulerSettings) -> int:
    both = stack.Stack(api, scheduler)
    with stopped_by_signals(stop=both.stop, kill=both.supervisor.kill):
        return await both.run(on_ready=_announce)


def _serve_alone(api: ApiSettings) -> int:
    from rollbook.server.process import run_api

    listener = stack.listen(api.host, api.port)
    line = stack.ready_line(listener, api)

    def announce() -> None:
        asyncio.run(stack.answering(listener))
        _announce(line)

    threading.Thread(target=announce, name="announce", daemon=True).start()
    return run_api(api, listener=listener)


def _announce(line: str) -> None:
    # A closed stdout is no reason to end a server.
    try:
        output.put(line)
    except output.OutputClosed:
        return


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
    on_shutdown: options.OnShutdown = "release",
) -> None:
    """Run rollouts that wait in the ledger, beside `rollbook serve --no-scheduler`."""
    queues = tuple(dict.fromkeys(options.queue_name(name, entrypoint) for name in queue or (None,)))
    settings = SchedulerSettings(
        database_url=database_url,
        entrypoint=entrypoint,
        queues=queues,
        runners=runners,
        max_concurrent=max_concurrent,
        on_shutdown=on_shutdown,
    )
    stack.prepare(database_url)
    stack.become("rollbook.scheduler", stack.variables(stack.SCHEDULER_SETTINGS_VARIABLE, settings))
