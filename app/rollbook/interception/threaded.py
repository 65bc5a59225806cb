"""An endpoint on a thread and an event loop of its own: it serves programs that block theirs while they wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from msgspec import Struct

from .endpoint import Endpoint
from .messages import CallPolicy
from .session import Session

THREAD_NAME = "rollbook-interception"


class ThreadedSession:
    """A session of an endpoint in another thread. What it is made of is as in `Session`."""

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        self.secret = session.secret
        self.chat_url = session.chat_url
        self.base_url = session.base_url
        self._session = session
        self._loop = loop

    async def close(self) -> None:
        """`Session.close`, in its own thread; once awaited, the policy is told of nothing any more."""
        ended = self.end()
        if ended is not None:
            await asyncio.wrap_future(ended)

    def end(self) -> Future[None] | None:
        """The same without waiting: calls that are made from now on get 410. None if all is over already."""
        closing = self._session.close()
        try:
            return asyncio.run_coroutine_threadsafe(closing, self._loop)
        except RuntimeError:  # the loop is closed, and its endpoint has closed every session before
            closing.close()
            return None


class RunningEndpoint(Struct, frozen=True):
    """An endpoint that serves in a thread of its own."""

    endpoint: Endpoint
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event

    def open(self, url: str, api_key: str | None, policy: CallPolicy) -> ThreadedSession:
        """`Endpoint.open`, for a program that must notice nothing, on any thread. The policy is told in its own.

        Raises:
            ValueError: `url` is no http or https URL.
            RuntimeError: the endpoint was closed.
        """
        return ThreadedSession(self.endpoint.open(url, api_key, policy, transparent=True), self.loop)


class _Started(Struct, frozen=True):
    running: Future[RunningEndpoint]
    thread: threading.Thread
    ended: Future[None]


class EndpointThread:
    """Starts its endpoint when it is first asked for; any event loop may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: _Started | None = None

    async def running(self) -> RunningEndpoint:
        """The endpoint, once it serves.

        Raises:
            OSError: no port is free.
        """
        starting = self._start().running
        if not starting.done():
            # Shielded: who is cancelled while it starts leaves it to the others.
            await asyncio.shield(asyncio.wrap_future(starting))
        return starting.result()

    async def close(self) -> None:
        """Close the endpoint with all its sessions, and end its thread. Repeating it is harmless."""
        with self._lock:
            started, self._started = self._started, None
        if started is None:
            return
        started.running.add_done_callback(_stop)
        # Shielded: a cancellation would cancel what the thread has to say at its end.
        await asyncio.shield(asyncio.wrap_future(started.ended))
        started.thread.join()

    def _start(self) -> _Started:
        with self._lock:
            started = self._started
            if started is None or started.ended.done() or _has_failed(started.running):
                # A loop of the caller's kind: a quick one is as good for this.
                kind = type(asyncio.get_running_loop())
                running, ended = Future[RunningEndpoint](), Future[None]()
                thread = threading.Thread(target=_work, args=(kind, running, ended), name=THREAD_NAME, daemon=True)
                started = self._started = _Started(running, thread, ended)
                thread.start()
            return started


def _work(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], running: Future[RunningEndpoint], ended: Future[None]
) -> None:
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(running))
    except BaseException as error:
        if not running.done():
            running.set_exception(error)
        else:
            raise
    finally:
        ended.set_result(None)


async def _serve(running: Future[RunningEndpoint]) -> None:
    endpoint = Endpoint()
    stop = asyncio.Event()
    await endpoint.start()
    running.set_result(RunningEndpoint(endpoint, asyncio.get_running_loop(), stop))
    try:
        await stop.wait()
    finally:
        await endpoint.close()


def _has_failed(running: Future[RunningEndpoint]) -> bool:
    """Whether it could not start: its thread may have a moment to live still."""
    return running.done() and running.exception() is not None


def _stop(running: Future[RunningEndpoint]) -> None:
    if running.exception() is None:
        found = running.result()
        found.loop.call_soon_threadsafe(found.stop.set)
