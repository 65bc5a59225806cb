"""A loop that is held up is measured while somebody wants to know, and no longer."""

from __future__ import annotations

import asyncio
import time

import pytest

from rollbook.metrics import looplag
from rollbook.metrics.looplag import LoopLag

HELD_UP_SEC = 0.05


async def test_what_holds_the_loop_up_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looplag, "LAG_SEC", 0.0)
    lag = LoopLag()
    async with lag.measured(), asyncio.timeout(60):
        while lag.lag_sec.total < HELD_UP_SEC:
            hold_up()
            await asyncio.sleep(0)
    measured = lag.lag_sec.count
    assert measured > 0
    await asyncio.sleep(0)
    assert lag.lag_sec.count == measured
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "loop-lag"]


def hold_up() -> None:
    """Busy for a moment, without giving the loop a turn."""
    until = time.monotonic() + HELD_UP_SEC / 10
    while time.monotonic() < until:
        pass
