"""How late an event loop is: what holds it up holds up all that runs on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import perf_counter

from rollbook.ledger.meters import SECONDS, Distribution

LAG_SEC = 0.25
"""How often the loop is asked how late it is."""


class LoopLag:
    """One per process that tells it."""

    def __init__(self) -> None:
        self.lag_sec = Distribution(SECONDS)
        """How much later than asked the loop came round."""

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure the running loop while the block lasts."""
        task = asyncio.get_running_loop().create_task(self._measure(), name="loop-lag")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _measure(self) -> None:
        while True:
            asked_at = perf_counter()
            await asyncio.sleep(LAG_SEC)
            self.lag_sec.add(max(perf_counter() - asked_at - LAG_SEC, 0.0))
