"""Cancelling an operation at its n-th await: while it waits there, as its answer arrives, or twice.

The awaits of the tasks that it starts count too: code of others runs in tasks of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import coroutine
from typing import Any, Literal

type When = Literal["waiting", "answered", "twice"]

WHENS: tuple[When, ...] = ("waiting", "answered", "twice")
"""`answered`: what was waited for is there already, and is lost with the cancellation."""

_of_operation: ContextVar[bool] = ContextVar("of_operation", default=False)


async def cancelled_at(number: int, work: Coroutine[Any, Any, Any], *, when: When) -> bool | None:
    """Run `work` as a task of its own and cancel it at its n-th await; whether it ended cancelled.

    False where it was too late for that, as where the answer came that had been waited for; None where there was no
    such await. Raises what `work` raises otherwise.
    """
    operation = _Operation(number, when)
    with operation.watching():
        task = operation.task = asyncio.create_task(work, name="operation")
        await asyncio.wait([task])
    if task.cancelled():
        assert operation.seen >= number
        return True
    task.result()
    if operation.seen < number:
        return None
    assert when == "answered" or operation.is_over, f"the cancellation at await {number} was swallowed"
    return False


class _Operation:
    def __init__(self, number: int, when: When) -> None:
        self.seen = 0
        self.task: asyncio.Task[Any] | None = None
        self.is_over = False
        """Whether it was over when the await came: one of a task that it left to itself."""
        self._number = number
        self._when = when

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every task that is started in this context."""
        loop = asyncio.get_running_loop()
        token = _of_operation.set(True)
        loop.set_task_factory(self._make)
        try:
            yield
        finally:
            loop.set_task_factory(None)
            _of_operation.reset(token)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context")
        watched = _of_operation.get() if context is None else context.get(_of_operation, False)
        return asyncio.Task(self._run(work) if watched else work, loop=loop, **options)

    async def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._watched(work)

    @coroutine
    def _watched(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            self._await(waited_for)
            value = error = None
            try:
                value = yield waited_for
            except BaseException as raised:
                error = raised

    def _await(self, waited_for: Any) -> None:
        self.seen += 1
        task = self.task
        if self.seen not in (self._number, self._number + 1 if self._when == "twice" else self._number):
            return
        if task is None or task.done():
            self.is_over = True
        elif self._when == "answered" and asyncio.isfuture(waited_for):
            waited_for.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)
