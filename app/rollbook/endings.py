"""Work that must not be left half done: awaited to its end, however often its caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["to_the_end"]


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
