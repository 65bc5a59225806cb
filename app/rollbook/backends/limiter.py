"""Slots of a backend: how many executions run, how many wait."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Counts running executions against a limit; who waits is served in order.

    Unlike ``asyncio.Semaphore`` it knows how many wait, can be resized and costs nothing while slots are free.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int | None:
        """How many may run at a time; None is unbounded."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._limit = limit
        self._serve()

    def take(self) -> bool:
        """Take a slot if one is free and nobody waits for it; False if not."""
        if self._waiting or not self._free():
            return False
        self._running += 1
        return True

    async def wait(self) -> None:
        """Wait for a slot and take it. A cancelled wait takes none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the slot was handed over in the very moment of the cancellation
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Free a taken slot."""
        self._running -= 1
        self._serve()

    def snapshot(self) -> dict[str, int | None]:
        """The numbers that ``GET /health`` shows as `concurrency`."""
        return {"max_concurrent": self._limit, "queued": len(self._waiting), "running": self._running}

    def _free(self) -> bool:
        return self._limit is None or self._running < self._limit

    def _serve(self) -> None:
        while self._waiting and self._free():
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
