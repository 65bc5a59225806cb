"""Time that a rollout may spend: one deadline that several steps share, and a budget that runs only while work does.

Neither stops anything by itself: whoever works under one asks how much is left and sets a timer for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["CumulativeBudget", "SharedDeadline"]

type Clock = Callable[[], float]
"""Seconds that never go back."""


class SharedDeadline:
    """One deadline for several steps, side by side or one after the other: what one takes, the others lack.

    It begins when it is made. None is unbounded; zero or less has expired already.
    """

    def __init__(self, limit_sec: float | None, *, clock: Clock = time.monotonic) -> None:
        self.limit_sec = limit_sec
        self._clock = clock
        self._began = clock()

    @property
    def at(self) -> float | None:
        """The moment it expires, on the clock it was made with; None where it never does."""
        return None if self.limit_sec is None else self._began + self.limit_sec

    def remaining_sec(self) -> float | None:
        """Seconds that are left, never less than zero; None where there is no limit."""
        at = self.at
        return None if at is None else max(0.0, at - self._clock())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining_sec() == 0.0


class CumulativeBudget:
    """Seconds of work over several segments; time between them costs nothing.

    ::

        budget = CumulativeBudget(data.timeouts.agent)
        with budget.running():
            async with asyncio.timeout(budget.remaining_sec()):
                ...
        if budget.exceeded: ...     # also where the work went on after its timer, or blocked it

    None is unbounded; zero or less is spent already. `queued_sec` of it went by before there was any work.
    """

    def __init__(self, limit_sec: float | None, *, queued_sec: float = 0.0, clock: Clock = time.monotonic) -> None:
        self.limit_sec = limit_sec
        self._queued_sec = queued_sec
        self._clock = clock
        self._earlier_sec = 0.0
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Spend time for as long as the block takes, however it ends; raises ``RuntimeError`` inside another."""
        if self._since is not None:
            raise RuntimeError("this budget is running already; a rollout runs one segment at a time")
        self._since = self._clock()
        try:
            yield
        finally:
            self._earlier_sec = self.spent_sec
            self._since = None

    @property
    def spent_sec(self) -> float:
        """Seconds of all segments so far, the running one included."""
        return self._earlier_sec + (0.0 if self._since is None else self._clock() - self._since)

    def remaining_sec(self) -> float | None:
        """Seconds that are left, never less than zero; None where there is no limit."""
        return None if self.limit_sec is None else max(0.0, self.limit_sec - self.gone_sec)

    @property
    def gone_sec(self) -> float:
        """Seconds of the limit that are over, those in the queue too."""
        return self._queued_sec + self.spent_sec

    @property
    def said(self) -> str:
        """For messages: ``its budget of 5s (4.2s of it queued)``; what was queued from 0.1 s on."""
        queued = f" ({self._queued_sec:.1f}s of it queued)" if self._queued_sec >= 0.1 else ""
        return f"its budget of {self.limit_sec or 0.0:g}s{queued}"

    @property
    def deadline(self) -> float | None:
        """When the budget ends if it runs from now on without a break, on the clock it was made with."""
        remaining_sec = self.remaining_sec()
        return None if remaining_sec is None else self._clock() + remaining_sec

    @property
    def exceeded(self) -> bool:
        """Whether nothing is left: work that took all of it is late."""
        return self.remaining_sec() == 0.0
