"""A runner in a thread of this process, for an embedded server: user code has an event loop of its own there.

Code that blocks that loop delays other rollouts; code that holds the interpreter's lock stalls the whole server.
Child processes (`rollbook serve`) do not have that weakness.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

from rollbook.backends.base import ExecutionBackend
from rollbook.scheduler.runners import UNBOUNDED_SLOTS, Deadline, Reports
from rollbook.scheduler.wire import Assignment, Entered, Finished, ToScheduler

from .executor import Executor
from .logs import SecretRegistry

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class ThreadPool:
    """One runner, in a thread."""

    def __init__(self, backend: ExecutionBackend, secrets: SecretRegistry, *, lifespan: Lifespan | None = None) -> None:
        self._backend = backend
        self._secrets = secrets
        self._lifespan = lifespan
        self._running: set[int] = set()
        self._outer: asyncio.AbstractEventLoop | None = None
        self._inner: asyncio.AbstractEventLoop | None = None
        self._reports: Reports | None = None
        self._executor: Executor | None = None
        self._thread: threading.Thread | None = None
        self._started: Future[None] = Future()
        self._ended = asyncio.Event()
        self._stop: asyncio.Event | None = None

    @property
    def capacity(self) -> int:
        """The backend's bound on concurrent executions."""
        limit = self._backend.max_concurrent
        return UNBOUNDED_SLOTS if limit is None else limit

    @property
    def free(self) -> int:
        """Slots that could take an execution now."""
        if not self._backend.has_capacity():
            return 0
        return max(self.capacity - len(self._running), 0)

    @property
    def trouble(self) -> str | None:
        """None while the thread runs."""
        return None if self._thread is None or self._thread.is_alive() else "the runner's thread is gone"

    async def start(self, reports: Reports) -> None:
        """Start the thread and enter the user's lifespan in it; whatever that raises is raised here."""
        self._reports = reports
        self._outer = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="rollbook-runner", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(self._started)
        reports.slots_changed()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        finally:
            self._outward(self._ended.set)

    async def _serve(self) -> None:
        self._inner = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            self._executor = Executor(self._backend, self._secrets, self._emit)
            self._started.set_result(None)
            await self._stop.wait()
            await self._executor.shut_down()

    def _emit(self, message: ToScheduler) -> None:
        self._outward(self._receive, message)

    def _outward(self, call: Callable[..., None], *arguments: object) -> None:
        assert self._outer is not None
        with contextlib.suppress(RuntimeError):  # the server's loop is closed: nobody is left to tell
            self._outer.call_soon_threadsafe(call, *arguments)

    def _inward(self, call: Callable[..., None], *arguments: object) -> None:
        if self._inner is not None:
            with contextlib.suppress(RuntimeError):
                self._inner.call_soon_threadsafe(call, *arguments)

    def _receive(self, message: ToScheduler) -> None:
        assert self._reports is not None
        if isinstance(message, Entered):
            self._reports.entered(message.key, message.phase)
        elif isinstance(message, Finished) and message.key in self._running:
            self._running.discard(message.key)
            self._reports.finished(message)
            self._reports.slots_changed()

    def run(self, assignment: Assignment, deadline: Deadline) -> None:
        """Hand an execution to the thread; its deadlines are the backend's to keep."""
        assert self._executor is not None
        self._running.add(assignment.key)
        self._inward(self._executor.start, assignment)

    def cancel(self, key: int) -> None:
        """Request an execution's end."""
        assert self._executor is not None
        self._inward(self._executor.cancel, key)

    async def kill(self) -> None:
        """A thread cannot be killed: what still runs is no longer listened to."""
        self._running.clear()

    async def stop(self, timeout_sec: float) -> None:
        """Shut the backend down and leave the user's lifespan."""
        if self._stop is not None:
            self._inward(self._stop.set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_sec):
                    await self._ended.wait()
