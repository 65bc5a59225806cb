"""Cancelling a coroutine at its n-th suspension, wherever in it and in the tasks it makes that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any


async def cancelled_at(number: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work` as a task and cancel it once it, or a task made meanwhile, has been suspended for the n-th time.

    Returns whether it came to that; if not, it has ended by itself. Errors other than the cancellation are raised.
    """
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    seen = 0
    task: asyncio.Task[Any]

    def suspended() -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            # Soon, not now: whoever is suspended must be waiting for it first, as in life.
            loop.call_soon(lambda: task.cancel())

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        async def watched() -> Any:
            return await _watched(work, suspended)

        return asyncio.Task(watched(), loop=loop, **options)

    loop.set_task_factory(make)
    try:
        task = loop.create_task(work)
        await asyncio.wait([task])
    finally:
        loop.set_task_factory(factory)
    if not task.cancelled():
        task.result()
    return task.cancelled()


@coroutine
def _watched(work: Coroutine[Any, Any, Any], suspended: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Drive `work` as `await` would, and say when it waits."""
    step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
    while True:
        try:
            waited_for = step()
        except StopIteration as end:
            return end.value
        suspended()
        try:
            received = yield waited_for
        except BaseException as error:
            step = _raiser(work, error)
        else:
            step = _sender(work, received)


def _raiser(work: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)


def _sender(work: Coroutine[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: work.send(value)
