"""A scheduler process: opens the ledger, runs until it is told to stop, and dies with its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator

import msgspec
import uvloop

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerError, QueueTaken
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.urls import DatabaseUrlError
from rollbook.logs import log_to_stderr, say
from rollbook.settings import HINT_VARIABLE, SCHEDULER_SETTINGS_VARIABLE, SchedulerSettings
from rollbook.supervisor import EX_CONFIG, LIFELINE_VARIABLE
from rollbook.tuning import spare_the_collector

from .pool import ChildPool, PoolSettings
from .scheduler import Scheduler

log = logging.getLogger(__name__)

EXIT_FAILED = 1


class CannotListen(Exception):
    """Metrics cannot be served where they should be; the message says what to do."""


START_ERRORS = (DatabaseUrlError, SchemaError, SecretKeyError, LedgerError, CannotListen)


def run_scheduler(
    settings: SchedulerSettings, *, hint_socket: socket.socket | None = None, lifeline: int | None = None
) -> int:
    """Run a scheduler in this process until SIGTERM or SIGINT; the exit code.

    Returns 78 when the entrypoint cannot be loaded, with the reason on standard error.
    """
    log_to_stderr(logging.INFO, process="scheduler")
    spare_the_collector()
    try:
        return uvloop.run(_serve(settings, hint_socket, lifeline))
    except START_ERRORS as error:
        say(f"the scheduler cannot work: {error}")
        return EXIT_FAILED


async def _serve(settings: SchedulerSettings, hint_socket: socket.socket | None, lifeline: int | None) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def end(reason: str | None = None) -> None:
        if not ended.done():
            ended.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if lifeline is not None:
        loop.add_reader(lifeline, os._exit, 1)  # readable means closed: the supervisor is gone
    ledger = await Ledger.open(settings.database_url, hint_socket=hint_socket)
    try:
        pool = ChildPool(
            PoolSettings(
                entrypoint=settings.entrypoint,
                runners=settings.runners,
                max_concurrent=settings.max_concurrent,
                memory_bytes=settings.runner_memory_bytes,
                record_model_calls=settings.record_model_calls,
                stall_after_sec=settings.stall_after_sec,
                clean_up_sec=settings.clean_up_sec,
            )
        )
        scheduler = Scheduler(ledger, settings, pool, on_broken=end)
        async with _telling_metrics(settings, ledger, scheduler, pool):
            try:
                await scheduler.start()
                reason = await ended
            finally:
                await scheduler.stop()
    except QueueTaken as error:
        reason = str(error)
    finally:
        await ledger.close()
    if reason is not None:
        say(reason)
        return EX_CONFIG
    return 0


@contextlib.asynccontextmanager
async def _telling_metrics(
    settings: SchedulerSettings, ledger: Ledger, scheduler: Scheduler, pool: ChildPool
) -> AsyncIterator[None]:
    """Serve the metrics while the block lasts, where they are wanted.

    Raises:
        CannotListen: the address is taken, or none.
    """
    host, port = settings.metrics_host, settings.metrics_port
    if port is None:
        yield
        return
    # Loaded only where it is wanted: Prometheus' library brings TLS and an HTTP server along.
    from rollbook.metrics.looplag import LoopLag

    from .metrics import MetricsServer, SchedulerMetrics

    lag = LoopLag()
    try:
        server = MetricsServer(SchedulerMetrics(ledger, scheduler, pool, lag_sec=lag.lag_sec), host=host, port=port)
    except OSError as error:
        raise CannotListen(
            f"cannot serve metrics on {host} port {port}: {error.strerror}; free it, or choose another"
        ) from error
    try:
        async with lag.measured():
            yield
    finally:
        await asyncio.to_thread(server.close)


def main() -> int:
    """`python -m rollbook.scheduler`: settings and descriptors come by environment variables."""
    settings = msgspec.json.decode(os.environ[SCHEDULER_SETTINGS_VARIABLE], type=SchedulerSettings)
    hint = os.environ.pop(HINT_VARIABLE, None)
    lifeline = os.environ.pop(LIFELINE_VARIABLE, None)
    with contextlib.ExitStack() as stack:
        hint_socket = None if hint is None else stack.enter_context(socket.socket(fileno=int(hint)))
        return run_scheduler(settings, hint_socket=hint_socket, lifeline=None if lifeline is None else int(lifeline))
