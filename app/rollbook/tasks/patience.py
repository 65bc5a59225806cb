"""Waiting for code of others that was cancelled: a moment, so that it can clean up, and no longer.

A hook, a tool or a harness may catch its cancellation, or hang while it cleans up. Nothing in this process can end it
then, but a rollout must not wait for it for ever: its deadline, its record and its end would be lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable
from typing import Any

from rollbook.endings import Ended, as_value, to_the_end

__all__ = ["GRACE_SEC", "patiently"]

log = logging.getLogger(__name__)

GRACE_SEC = 10.0
"""How long cancelled code may take to end: longer than a killed command, shorter than a runner is given."""

_left_behind: set[asyncio.Task[Any]] = set()
"""What did not end; the event loop itself keeps no task alive."""


async def patiently[T](work: Awaitable[T], who: str) -> T:
    """The result of `work`, or what it raises. It runs as a task of its own; the caller's context variables are as if
    it had run in the caller's.

    A cancellation is passed on to it, and is raised here once it has ended, however it did; at the latest after
    `GRACE_SEC`, when it is left behind with a line in the log that names `who`. A second one changes nothing.
    """
    context = contextvars.copy_context()
    task = asyncio.get_running_loop().create_task(as_value(lambda: work), name=who, context=context)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        try:
            await to_the_end(asyncio.wait([task], timeout=GRACE_SEC))
        finally:
            _tell_of(task, who)
        raise
    _take_over(context)
    return task.result().result()


def _take_over(context: contextvars.Context) -> None:
    """Have the variables of a context that is used up."""
    ours = contextvars.copy_context()
    for variable, value in context.items():
        if variable not in ours or ours[variable] is not value:
            variable.set(value)


def _tell_of(task: asyncio.Task[Ended[Any]], who: str) -> None:
    if not task.done():
        _left_behind.add(task)
        task.add_done_callback(_left_behind.discard)
        log.error("%s was cancelled and has not ended after %g s; it is left behind", who, GRACE_SEC)
        return
    error = task.result().error
    if error is not None and not isinstance(error, asyncio.CancelledError):
        log.warning("%s was cancelled and raised %s", who, type(error).__name__, exc_info=error)
