"""Running one stage of user code: under its deadline, with every way it can end turned into a value or a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rollbook.backends.failures import Failure, deadline_failure, failure_of
from rollbook.sdk.context import get_rollout_context
from rollbook.sdk.span import Stage
from rollbook_client.statuses import RolloutErrorCategory

_told: ContextVar[bool] = ContextVar("stage_is_told", default=False)
"""Whether the rollout's context was told of a stage that goes on: one inside another is not told of."""


class StageError(Exception):
    """Carries a stage's failure, and the error of user code behind it if it was not a deadline of ours."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def run_stage[T](
    step: Callable[[], Awaitable[T]],
    who: str,
    *,
    limit_sec: float | None,
    queued_sec: float = 0.0,
    name: str = "",
    late: str | None = None,
) -> T:
    """Await ``step()`` for at most `limit_sec` minus `queued_sec` seconds and return its value.

    The rollout's context is told of it, so that somebody outside can end it where it blocks this process; as `name`
    among its spans. `late` is the failure's message after the deadline, if it is to be another than `deadline_failure`
    makes of `who`.

    Raises `StageError` for everything user code raises, ``SystemExit`` and the like included, and for a deadline
    that passed, even if the code went on and returned: whoever asked has stopped waiting. With no time left the
    step is not started. ``CancelledError`` is raised only if the running task was cancelled from outside.
    """
    failure = deadline_failure(who, limit_sec or 0.0, queued_sec=queued_sec)
    if late is not None:
        failure = Failure(late, RolloutErrorCategory.TIMEOUT)
    left_sec = None if limit_sec is None else limit_sec - queued_sec
    if left_sec is not None and left_sec <= 0:
        raise StageError(failure)
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    timer = asyncio.timeout(left_sec)
    started = time.monotonic()
    try:
        with _watched(name, left_sec, failure.message):
            async with timer:
                value = await step()
    except BaseException as error:
        # Without a request for cancellation a CancelledError is one that user code made itself.
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > cancelled_before:
            raise
        if timer.expired():
            raise StageError(failure) from None
        raise StageError(failure_of(error, who)) from error
    # The timer cannot fire while user code blocks the loop, so the clock is asked as well.
    if left_sec is not None and (timer.expired() or time.monotonic() - started > left_sec):
        raise StageError(failure)
    return value


@contextmanager
def _watched(name: str, left_sec: float | None, late: str) -> Iterator[None]:
    ctx = None if _told.get() else get_rollout_context()
    if ctx is None:
        yield
        return
    ends_at = None if left_sec is None else time.monotonic() + left_sec
    ctx.enter_stage(Stage(name=name, began_at=time.time_ns() // 1000, ends_at=ends_at, late=late))
    _told.set(True)
    try:
        yield
    finally:
        _told.set(False)
        ctx.enter_stage(None)
