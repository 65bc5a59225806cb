"""When a runner counts as stalled: when its pulse stops while somebody watches it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rollbook.scheduler.child import LATE_LOOK_SEC, Child, ChildEvents


class Watched:
    """A child of which no process was started, at times that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nothing(*_: object) -> None:
            return None

        self.now = 1_000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.child = Child("x.py", ChildEvents(*[nothing] * 6), max_concurrent=None, memory=None)
        self.child.is_ready = True

    def look(self, *after: float) -> float:
        """Look so many seconds after the last time, repeatedly; what the last look said."""
        stalled_sec = 0.0
        for seconds in after:
            self.now += seconds
            stalled_sec = self.child.stalled_sec()
        return stalled_sec


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    with monkeypatch.context() as patch:
        made = Watched(patch)
        yield made
    made.child.close()


async def test_runner_without_a_pulse_is_stalled_since_the_last_one(watched: Watched) -> None:
    assert watched.look(0.5, 0.5, 0.5) == 1.0
    watched.child._marks.beat()
    assert watched.look(0.5) == 0.0
    assert watched.look(0.5, 0.5) == 1.0


async def test_pulse_missed_while_nobody_looked_counts_for_nothing(watched: Watched) -> None:
    # As after SIGSTOP and SIGCONT of a whole deployment, or a machine that was paused.
    watched.look(0.5, 0.5)
    assert watched.look(LATE_LOOK_SEC * 100) == 0.0
    assert watched.look(0.5, 0.5) == 1.0
