"""A runner in a thread of this process, for an embedded server: user code has an event loop of its own there.

Code that blocks that loop delays other rollouts; code that holds the interpreter's lock stalls the whole server.
Child processes (`rollbook serve`) do not have that weakness.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from rollbook.backends.base import ExecutionBackend
from rollbook.scheduler.loops import FIRST_BACKOFF_SEC, LONGEST_BACKOFF_SEC
from rollbook.scheduler.runners import UNBOUNDED_SLOTS, Lost, Reports
from rollbook.scheduler.wire import Assignment, Entered, Finished, Recorded, ToScheduler

from .executor import Executor
from .logs import SecretRegistry

log = logging.getLogger(__name__)

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class _Inner(msgspec.Struct, frozen=True):
    """The thread's event loop while it takes work."""

    loop: asyncio.AbstractEventLoop
    executor: Executor
    stop: asyncio.Event

    def call(self, what: Callable[..., None], *arguments: object) -> None:
        # A loop that has just ended is told of by `ThreadPool._lose`.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *arguments)


class ThreadPool:
    """One runner, in a thread. Its state belongs to the loop that called `start`; the thread only posts to it."""

    def __init__(self, backend: ExecutionBackend, secrets: SecretRegistry, *, lifespan: Lifespan | None = None) -> None:
        self._backend = backend
        self._secrets = secrets
        self._lifespan = lifespan
        self._running: set[int] = set()
        self._outer: asyncio.AbstractEventLoop | None = None
        self._inner: _Inner | None = None
        self._reports: Reports | None = None
        self._thread: threading.Thread | None = None
        self._begun: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._stopping = threading.Event()
        self._trouble: str | None = None

    @property
    def capacity(self) -> int:
        """The backend's bound on concurrent executions."""
        limit = self._backend.max_concurrent
        return UNBOUNDED_SLOTS if limit is None else limit

    @property
    def free(self) -> int:
        """Slots that could take an execution now."""
        if self._inner is None or not self._backend.has_capacity():
            return 0
        return max(self.capacity - len(self._running), 0)

    @property
    def trouble(self) -> str | None:
        """Why no work is taken; None while it is."""
        return self._trouble

    async def start(self, reports: Reports) -> None:
        """Start the thread and enter the user's lifespan in it; whatever that raises is raised here."""
        self._reports = reports
        self._outer = asyncio.get_running_loop()
        self._begun = self._outer.create_future()
        self._thread = threading.Thread(target=self._work, name="rollbook-runner", daemon=True)
        self._thread.start()
        await self._begun

    def run(self, assignment: Assignment) -> None:
        """Hand an execution to the thread; its deadlines are the backend's to keep."""
        assert self._inner is not None
        self._running.add(assignment.key)
        self._inner.call(self._inner.executor.start, assignment)

    def cancel(self, key: int) -> None:
        """Request an execution's end."""
        if self._inner is not None:
            self._inner.call(self._inner.executor.cancel, key)

    async def kill(self) -> None:
        """A thread cannot be killed: what still runs is no longer listened to."""
        self._running.clear()

    async def stop(self, timeout_sec: float) -> None:
        """Shut the backend down and leave the user's lifespan."""
        self._stopping.set()
        if self._inner is not None:
            self._inner.call(self._inner.stop.set)
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_sec):
                    await self._ended.wait()

    # In the thread

    def _work(self) -> None:
        backoff_sec = FIRST_BACKOFF_SEC
        try:
            while not self._stopping.is_set():
                try:
                    asyncio.run(self._serve())
                except BaseException as error:
                    # User code's tasks can end the loop, by a SystemExit say; the next one takes over.
                    self._outward(self._lose, error)
                    self._stopping.wait(backoff_sec)
                    backoff_sec = min(backoff_sec * 2, LONGEST_BACKOFF_SEC)
        finally:
            self._outward(self._ended.set)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        executor = Executor(self._backend, self._secrets, lambda message: self._outward(self._receive, message))
        async with contextlib.AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            await self._backend.check()
            self._outward(self._begin, _Inner(asyncio.get_running_loop(), executor, stop))
            await stop.wait()
            await executor.shut_down()

    def _outward(self, call: Callable[..., None], *arguments: object) -> None:
        assert self._outer is not None
        with contextlib.suppress(RuntimeError):  # the server's loop is closed: nobody is left to tell
            self._outer.call_soon_threadsafe(call, *arguments)

    # What the thread posts

    def _begin(self, inner: _Inner) -> None:
        assert self._reports is not None
        assert self._begun is not None
        self._inner, self._trouble = inner, None
        if not self._begun.done():
            self._begun.set_result(None)
        if self._stopping.is_set():
            inner.call(inner.stop.set)
        self._reports.slots_changed()

    def _lose(self, error: BaseException) -> None:
        assert self._reports is not None
        assert self._begun is not None
        self._inner = None
        if not self._begun.done():
            self._stopping.set()  # it never began: whoever called `start` is told instead
            self._begun.set_exception(error)
            return
        self._trouble = f"the event loop of user code ended: {type(error).__name__}: {error}"
        log.error("%s; another one is started", self._trouble, exc_info=error)
        # What had begun was cancelled with its loop and has reported. The rest never reached it.
        for key in sorted(self._running):
            reason = "the event loop it was handed to ended before it began"
            self._reports.lost(Lost(key, reason, released=True))
        self._running.clear()
        self._reports.slots_changed()

    def _receive(self, message: ToScheduler) -> None:
        assert self._reports is not None
        if isinstance(message, Entered):
            self._reports.entered(message.key, message.phase)
        elif isinstance(message, Recorded) and message.key in self._running:
            self._reports.recorded(message)
        elif isinstance(message, Finished) and message.key in self._running:
            self._running.discard(message.key)
            self._reports.finished(message)
            self._reports.slots_changed()
