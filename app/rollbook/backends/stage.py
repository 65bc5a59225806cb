"""Running one stage of user code: under its deadline, with every way it can end turned into a value or a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from rollbook.backends.failures import Failure, deadline_failure, failure_of


class StageError(Exception):
    """Carries a stage's failure, and the error of user code behind it if it was not a deadline of ours."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def run_stage[T](
    step: Callable[[], Awaitable[T]], who: str, *, limit_sec: float | None, queued_sec: float = 0.0
) -> T:
    """Await ``step()`` for at most `limit_sec` minus `queued_sec` seconds and return its value.

    Raises `StageError` for everything user code raises, ``SystemExit`` and the like included, and for a deadline
    that passed, even if the code went on and returned: whoever asked has stopped waiting. With no time left the
    step is not started. ``CancelledError`` is raised only if the running task was cancelled from outside.
    """
    if limit_sec is not None and limit_sec - queued_sec <= 0:
        raise StageError(deadline_failure(who, limit_sec, queued_sec=queued_sec))
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    timer = asyncio.timeout(None if limit_sec is None else limit_sec - queued_sec)
    started = time.monotonic()
    try:
        async with timer:
            value = await step()
    except BaseException as error:
        # Without a request for cancellation a CancelledError is one that user code made itself.
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > cancelled_before:
            raise
        if timer.expired() and limit_sec is not None:
            raise StageError(deadline_failure(who, limit_sec, queued_sec=queued_sec)) from None
        raise StageError(failure_of(error, who)) from error
    # The timer cannot fire while user code blocks the loop, so the clock is asked as well.
    if limit_sec is not None and (timer.expired() or time.monotonic() - started > limit_sec - queued_sec):
        raise StageError(deadline_failure(who, limit_sec, queued_sec=queued_sec))
    return value
