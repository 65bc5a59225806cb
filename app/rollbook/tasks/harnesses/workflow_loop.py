"""An event loop in a thread of its own for workflows: one that blocks it while it waits for the model gets its answer.

The endpoint and the hooks run on the runner's loop. A workflow there that calls the model with a synchronous client
would hold up the very loop that has to answer it, for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from rollbook.endings import Ended, as_value

__all__ = ["WorkflowLoop"]

log = logging.getLogger(__name__)

GRACE_SEC = 5.0
"""How long a cancelled workflow may take to end; one that blocks ends when its model calls are cut, shortly after."""


class WorkflowLoop:
    """Runs workflows, all on one loop, which begins with the first of them and ends with this object.

    One loop, and not one for each, because clients and locks that workflows share belong to the loop that used them
    first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run[T](self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work()``, which runs with the caller's context variables; raises what it raises.

        A cancellation is passed on, and `work` has a moment to end.
        """
        loop = self._running()
        ended: Future[Ended[T]] = Future()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(_until_ended(work, ended), name="workflow")
            task.add_done_callback(lambda _: _never_begun(ended))
            tasks.append(task)

        loop.call_soon_threadsafe(begin)
        waiting = asyncio.wrap_future(ended)
        try:
            found = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            _, late = await asyncio.wait([waiting], timeout=GRACE_SEC)
            if late:
                log.warning("a workflow that was cancelled goes on after %g s: it blocks its event loop", GRACE_SEC)
            raise
        return found.result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                # A loop of the caller's kind.
                self._loop = type(asyncio.get_running_loop())()
                over = threading.Event()
                weakref.finalize(self, _stop, self._loop, over)
                threading.Thread(target=_serve, args=(self._loop, over), name="rollbook-workflows", daemon=True).start()
            return self._loop


async def _until_ended[T](work: Callable[[], Awaitable[T]], ended: Future[Ended[T]]) -> None:
    ended.set_result(await as_value(work))


def _never_begun[T](ended: Future[Ended[T]]) -> None:
    """A task that is cancelled before its first step says nothing."""
    if not ended.done():
        ended.set_result(Ended(None, asyncio.CancelledError()))


def _serve(loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not over.is_set():
            try:
                loop.run_forever()
            except BaseException as error:
                # Of a task that a workflow started: those of SystemExit's kind end a loop, and all others' with it.
                log.error("a task of a workflow raised %s; the others go on", type(error).__name__, exc_info=error)
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    over.set()
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
