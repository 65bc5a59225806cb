"""The pulse that wakes streams."""

from __future__ import annotations

import asyncio

from rollbook.server.streams import Pulse

LIMIT_SEC = 60.0


async def test_beat_wakes_all_that_wait_and_none_that_come_later() -> None:
    pulse = Pulse()
    waiting = [asyncio.ensure_future(pulse.wait(LIMIT_SEC)) for _ in range(3)]
    await asyncio.sleep(0)
    pulse.beat()
    await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_SEC)
    later = asyncio.ensure_future(pulse.wait(LIMIT_SEC))
    await asyncio.sleep(0)
    assert not later.done()
    pulse.beat()
    await asyncio.wait_for(later, LIMIT_SEC)


async def test_wait_ends_by_itself() -> None:
    await asyncio.wait_for(Pulse().wait(0.001), LIMIT_SEC)


async def test_released_pulse_lets_nobody_wait_any_more() -> None:
    pulse = Pulse()
    pulse.release()
    await asyncio.wait_for(pulse.wait(LIMIT_SEC), LIMIT_SEC / 2)
    await asyncio.wait_for(pulse.wait(LIMIT_SEC), LIMIT_SEC / 2)
