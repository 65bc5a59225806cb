"""Running code of others in a rollout: under its deadline, not for ever where that is ignored, and without harm."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable

from rollbook.backends.stage import run_stage
from rollbook.tasks.budget import SharedDeadline
from rollbook.tasks.patience import patiently
from rollbook_client.events import Event

__all__ = ["done", "run_shared", "run_theirs", "telling"]

log = logging.getLogger(__name__)


async def run_shared(deadline: SharedDeadline, who: str, step: Callable[[], Awaitable[None]]) -> None:
    """Run a step of the set-up, which has what is left of the deadline."""
    late = f"{who} ended the {deadline.limit_sec or 0.0:g}s that the set-up of task and harness share"
    await run_theirs(step, who, limit_sec=deadline.remaining_sec(), name="setup", late=late)


async def run_theirs[T](
    step: Callable[[], Awaitable[T]],
    who: str,
    *,
    limit_sec: float | None,
    queued_sec: float = 0.0,
    name: str = "",
    late: str | None = None,
) -> T:
    """`run_stage` for code that is not ours, and may not end when it is cancelled."""
    return await run_stage(
        lambda: patiently(step(), who), who, limit_sec=limit_sec, queued_sec=queued_sec, name=name, late=late
    )


async def done(returned: Awaitable[None] | None) -> None:
    """Wait for what a method of the task returned: one that is not async has nothing to wait for."""
    if inspect.isawaitable(returned):
        await returned


def telling(listener: Callable[[Event], None], *, rollout_id: str) -> Callable[[Event], None]:
    """Tells a listener, and writes to the log what that raises: the rollout is worth more than that it is heard of."""

    def tell(event: Event) -> None:
        try:
            listener(event)
        except Exception:
            log.exception("rollout %s: its %s could not be told", rollout_id, event.TYPE)

    return tell
