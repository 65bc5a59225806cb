"""Where a batch is written: on the loop itself as long as commits are quick and nobody else has the turn, else in a
thread.

Two hand-overs between threads cost as much as a small commit. A thread lets the loop go on while a slow disk syncs or
another process writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rollbook.ledger.batch import Committed
from rollbook.ledger.commands import Command
from rollbook.ledger.database import Landed, Take

INLINE_BATCH = 64
INLINE_LIMIT_SEC = 0.002
"""Commits that take longer on average go to the thread: a disk that syncs slowly must not hold the loop."""
COMMAND_SEC = 0.000_03
PACE_WINDOW = 8
SWITCH_INTERVAL_SEC = 1e-4
"""The default of 5 ms would starve the writer's thread beside a busy event loop."""


class Store(Protocol):
    """What carries out a batch: `run` on the writer's thread, `run_now` on the loop, never both at a time."""

    def run(self, commands: list[Command[Any]]) -> Committed: ...

    def run_now(self, commands: list[Command[Any]]) -> Committed | None: ...

    def guard_leases(self, silence_us: int) -> None: ...

    def stop_guarding(self) -> None: ...

    def close(self) -> None: ...


class Pace:
    """Whether commits are quick enough to be made on the loop: a moving mean of what they lately took."""

    def __init__(self) -> None:
        self._mean_sec = 0.0

    def allows(self, commands: int) -> bool:
        """Whether a batch of so many commands may be written on the loop."""
        return commands <= INLINE_BATCH and self._mean_sec < INLINE_LIMIT_SEC

    def note(self, seconds: float, commands: int) -> None:
        """A batch took so long. What its commands themselves cost is taken off: only waiting makes a commit slow."""
        wait_sec = max(seconds - commands * COMMAND_SEC, 0.0)
        self._mean_sec += (wait_sec - self._mean_sec) / PACE_WINDOW


class StoreCommitter:
    """A committer over a store that blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pace = Pace()
        self._inbox: queue.SimpleQueue[list[Command[Any]] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._landed: Landed | None = None
        self._thread: threading.Thread | None = None

    def start(self, landed: Landed) -> None:
        self._loop = asyncio.get_running_loop()
        self._landed = landed
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_SEC))
        self._thread = threading.Thread(target=self._work, name="rollbook-ledger-writer", daemon=True)
        self._thread.start()

    def commit(self, take: Take) -> None:
        assert self._landed is not None
        commands = take()  # at once: whether it is written here depends on its size, and the thread cannot take it
        if self._pace.allows(len(commands)):
            result = self._run(self._store.run_now, commands)
            if result is not None:
                self._landed(result)
                return
        self._inbox.put(commands)

    def guard_leases(self, silence_us: int) -> None:
        self._store.guard_leases(silence_us)

    def stop_guarding(self) -> None:
        self._store.stop_guarding()

    async def close(self) -> None:
        if self._thread is None:
            self._store.close()
            return
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    def _work(self) -> None:
        while (commands := self._inbox.get()) is not None:
            result = self._run(self._store.run, commands)
            # A loop that was closed under us has nobody left to answer.
            with contextlib.suppress(RuntimeError):
                assert self._loop is not None and self._landed is not None
                self._loop.call_soon_threadsafe(self._landed, result)
        self._store.close()

    def _run[Result](
        self, run: Callable[[list[Command[Any]]], Result], commands: list[Command[Any]]
    ) -> Result | BaseException:
        started = time.perf_counter()
        result: Result | BaseException
        try:
            result = run(commands)
        except BaseException as error:
            result = error
        if result is not None:  # a turn left to the thread says nothing about how quick commits are
            self._pace.note(time.perf_counter() - started, len(commands))
        return result
