"""How work ends: awaited to its end however often its caller is cancelled meanwhile, and its end carried as a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

__all__ = ["Ended", "as_value", "to_the_end"]


class Ended[T](Struct, frozen=True):
    """What work returned, or the error that it raised."""

    value: T | None
    error: BaseException | None

    def result(self) -> T:
        """The value; raises the error where there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error there is a value


async def as_value[T](work: Callable[[], Awaitable[T]]) -> Ended[T]:
    """How ``work()`` ended. Nothing is raised: some errors, SystemExit for one, would end the event loop of a task, and
    others mean something to a future.
    """
    try:
        return Ended(await work(), None)
    except BaseException as error:
        return Ended(None, error)


async def to_the_end[T](work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """The result of `work`, which is never cancelled; a cancellation of the caller is raised once it is over.

    Raises whatever `work` raises.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()
