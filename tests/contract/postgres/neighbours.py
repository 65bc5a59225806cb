"""Processes that write to the same ledger while a test looks on, and readers that follow what they write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rollbook.ledger.database import database_of
from rollbook.ledger.reader import Reader
from rollbook.ledger.urls import parse_url

ROOT = Path(__file__).parents[3]
LIMIT_SEC = 60.0
PAGE = 50


class Neighbour:
    """One process that renews leases."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.renewed = 0
        self.total = 0
        self.failures: list[str] = []
        self._told = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode().strip():
            word, _, rest = line.partition(" ")
            match word:
                case "renewed":
                    self.renewed = int(rest)
                case "total":
                    self.total = int(rest.split()[0])
                case _:
                    self.failures.append(rest)
            self._told.set()
        self._told.set()

    async def more(self) -> None:
        """Wait until it has renewed more than it had."""
        before = self.renewed
        async with asyncio.timeout(LIMIT_SEC):
            while self.renewed <= before:
                assert not self._listening.done(), "a writer ended by itself"
                self._told.clear()
                await self._told.wait()

    async def end(self) -> int:
        """How many renewals it was told of."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(LIMIT_SEC):
            await self._listening
            assert await self._process.wait() == 0
        return self.total

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening


@contextlib.asynccontextmanager
async def neighbours(database_url: str, *, count: int, rollouts: int) -> AsyncIterator[list[Neighbour]]:
    """So many processes that renew the leases of `r-0`, `r-1`, …; none outlives the block."""
    folders = [ROOT, *(ROOT / folder for folder in ("app", "client", "projections", "migrations"))]
    started: list[Neighbour] = []
    try:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.contract.postgres.renewing", database_url, str(rollouts)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            )
            started.append(Neighbour(process))
        await asyncio.gather(*(each.more() for each in started))
        yield started
    finally:
        for each in started:
            await each.kill()


class Follower:
    """Reads on from the last position that it knows, all the time, as feeds and streams do."""

    def __init__(self, database_url: str) -> None:
        self._reader = Reader(database_of(parse_url(database_url)))
        self.seen: list[tuple[int, int, str]] = []
        self.looks = 0
        self._looked = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    @property
    def position(self) -> int:
        return self.seen[-1][0] if self.seen else 0

    async def _follow(self) -> None:
        while True:
            news = await self._reader.news_after(self.position, PAGE)
            self.seen.extend((event.position, event.number, event.type) for event in news)
            self.looks += 1
            self._looked.set()

    async def until(self, *, looks: int = 0, position: int = 0) -> None:
        """Wait for that many more looks, and for a position."""
        looks += self.looks
        async with asyncio.timeout(LIMIT_SEC):
            while self.looks < looks or self.position < position:
                assert not self._task.done(), "a reader failed"
                self._looked.clear()
                await self._looked.wait()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._reader.close()
