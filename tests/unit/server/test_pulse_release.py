"""A pulse that was released stays so."""

from __future__ import annotations

import asyncio

from rollbook.server.streams import Pulse

LIMIT_SEC = 3_600.0


async def test_beat_after_the_release_lets_nobody_wait_again() -> None:
    pulse = Pulse()
    pulse.release()
    pulse.beat()
    await asyncio.wait_for(pulse.wait(LIMIT_SEC), 10)
