"""`create_rollout_server`: API, scheduler and backend in one ASGI app, over an embedded ledger.

The backend, its user code and the user's lifespan share a thread with an event loop of their own. Code that blocks
that loop delays other rollouts, not polls; code that holds the interpreter's lock (a catastrophic regular expression)
stalls polls too. `rollbook serve` runs user code in processes of its own and has neither weakness.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from litestar import Litestar
from litestar.types import LifeSpanReceive, LifeSpanScope, LifeSpanSend, Receive, Scope, Send

from rollbook.backends.base import ExecutionBackend
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerError
from rollbook.ledger.schema import SchemaError
from rollbook.ledger.secrets import SecretKeyError
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, DatabaseUrlError, parse_url
from rollbook.scheduler.runner.logs import SecretRegistry, log_scrubbed
from rollbook.scheduler.runner.thread import ThreadPool
from rollbook.scheduler.scheduler import Scheduler
from rollbook.settings import ApiSettings, SchedulerSettings

from .app import build_app
from .member import ApiMember
from .service import ApiService

DEFAULT_QUEUE = "default"

START_ERRORS = (DatabaseUrlError, SchemaError, SecretKeyError, LedgerError)
"""Why a start fails in a way that was foreseen; each says what to do next."""

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
    result_wait_timeout_sec: float = 30.0,
    polling_lease_timeout_sec: float = 120.0,
    result_retention_sec: float | None = None,
    api_key: str | None = None,
    operator_api_key: str | None = None,
    database_url: str = DEFAULT_DATABASE_URL,
    queue: str = DEFAULT_QUEUE,
    max_queue_depth: int | None = None,
    max_attempts: int = 3,
    max_request_bytes: int = 32 * 1024 * 1024,
) -> Litestar:
    """An ASGI app that admits rollouts, runs them on ``backend`` and answers polls; run it with any ASGI server.

    Times are seconds. ``lifespan`` is called with the app and entered in the backend's thread before the first rollout;
    it is left last, after ``backend.shutdown()``. ``result_retention_sec`` None keeps results readable for ever.
    ``operator_api_key`` opens the operator routes instead of ``api_key``. ``queue`` names what admissions go to and
    what this server claims from; servers that share a ledger file share its queue. On shutdown, running rollouts get 10
    s to end, are then cancelled and get 120 s to clean up.

    Raises:
        ValueError: a blank key, the same key twice, a wait or lease that is not finite and positive, a lease that is
            not longer than the wait, a negative retention or limit, or a database URL that cannot be used.
    """
    parse_url(database_url)
    settings = ApiSettings(
        database_url=database_url,
        queue=queue,
        api_key=api_key,
        operator_api_key=operator_api_key,
        result_wait_timeout_sec=result_wait_timeout_sec,
        polling_lease_timeout_sec=polling_lease_timeout_sec,
        result_retention_sec=result_retention_sec,
        max_queue_depth=max_queue_depth,
        max_attempts=max_attempts,
        max_request_bytes=max_request_bytes,
    )
    secrets = SecretRegistry()
    if configure_logging:
        log_scrubbed(secrets, process="server")
    service = ApiService(None, settings)
    embedding = _Embedding(service, backend, secrets, lifespan)
    return build_app(service, lifespan=embedding.run, kind=_Server)


class _Server(Litestar):
    """Says in a sentence why it cannot start, where it has one: the traceback that its own would give hides it."""

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        await super().__call__(scope, receive, _explained(send) if scope["type"] == "lifespan" else send)


def _explained(send: Any) -> Any:
    async def explained(message: dict[str, Any]) -> None:
        # Sent while the error is handled that the message is about.
        if message["type"] == "lifespan.startup.failed" and (why := _foreseen(sys.exception())):
            message = {**message, "message": f"the server cannot start: {why}"}
        await send(message)

    return explained


def _foreseen(error: BaseException | None) -> str:
    """The sentence of the first error that was foreseen, if all were: one at the start ends all tasks of a group."""
    if isinstance(error, BaseExceptionGroup):
        parts = [_foreseen(part) for part in error.exceptions]
        return parts[0] if all(parts) else ""
    return str(error) if isinstance(error, START_ERRORS) else ""


class _Embedding:
    """What the app holds open while it serves."""

    def __init__(
        self, service: ApiService, backend: ExecutionBackend, secrets: SecretRegistry, lifespan: Lifespan | None
    ) -> None:
        self._service = service
        self._backend = backend
        self._secrets = secrets
        self._lifespan = lifespan

    @contextlib.asynccontextmanager
    async def run(self, app: Litestar) -> AsyncIterator[None]:
        """Open the ledger, register, start the scheduler; and all of it backwards at the end."""
        service, settings = self._service, self._service.settings
        async with contextlib.AsyncExitStack() as stack:
            ledger = await Ledger.open(settings.database_url)
            stack.push_async_callback(ledger.close)
            scheduler = self._scheduler(app, ledger)
            stack.push_async_callback(scheduler.stop)  # also what a start that fails has begun
            # The API leaves before the scheduler drains: nobody can poll meanwhile, so no lease may run out.
            member = ApiMember(
                ledger,
                lease_timeout_sec=settings.polling_lease_timeout_sec,
                accepting=lambda: service.accepting,
            )
            service.attach(ledger)
            service.loops["beat"] = lambda: member.trouble
            await member.start()
            stack.push_async_callback(member.stop)
            for loop in scheduler.loops:
                service.loops[loop.name] = partial(getattr, loop, "trouble")
            await scheduler.start()
            await stack.enter_async_context(service.meters.running())
            stack.callback(service.end_waits)
            stack.callback(service.stop_admissions)
            yield

    def _scheduler(self, app: Litestar, ledger: Ledger) -> Scheduler:
        kind = type(self._backend)
        settings = SchedulerSettings(
            database_url=self._service.settings.database_url,
            entrypoint=f"{kind.__module__}:{kind.__qualname__}",
            queues=(self._service.settings.queue,),
            on_shutdown="cancel",
        )
        entered = None if self._lifespan is None else partial(self._lifespan, app)
        pool = ThreadPool(self._backend, self._secrets, lifespan=entered)
        return Scheduler(ledger, settings, pool, on_broken=logging.getLogger(__name__).error)
