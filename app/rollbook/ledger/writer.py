"""Group commit: callers await their command, and whatever has gathered is committed at once.

No timer: a batch is flushed at the first turn of the loop that brings nothing new to it, and while it is being
written the next one gathers. A batch is written on the loop itself as long as commits are quick and no other process
has its turn: two hand-overs between threads cost as much as a small commit. Else a thread writes it, and the loop goes
on. A caller that goes away does not take its command back: what was submitted is carried out.
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

from .commands import Command
from .refusals import LedgerError, LedgerUnavailable
from .sqlite import Committed

MAX_BATCH = 512
GATHER_TURNS = 8
"""A turn takes microseconds on an idle loop. On a busy one each brings more callers, up to this many turns."""
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


_Waiting = tuple[Command[Any], asyncio.Future[Any]]


class GroupCommitWriter:
    """One per process. Start and use it on one event loop."""

    def __init__(self, store: Store, on_commit: Callable[[Committed], None]) -> None:
        self._store = store
        self._on_commit = on_commit
        self._waiting: list[_Waiting] = []
        self._flight: list[_Waiting] | None = None
        self._scheduled = False
        self._pace = Pace()
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._inbox: queue.SimpleQueue[list[Command[Any]] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writer's thread; call it on the loop that will submit."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_SEC))
        self._thread = threading.Thread(target=self._work, name="rollbook-ledger-writer", daemon=True)
        self._thread.start()

    async def submit[Answer](self, command: Command[Answer]) -> Answer:
        """Carry a command out; when this returns, its events are on disk.

        Raises:
            LedgerError: a refusal, or `LedgerUnavailable` when nothing could be written.
        """
        if self._loop is None or self._closing:
            raise LedgerUnavailable("the ledger is closed in this process")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append((command, future))
        self._idle.clear()
        if self._flight is None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._gather, 0, 0)
        return await future

    def _gather(self, before: int, turns: int) -> None:
        """Flush once a turn of the loop brought nothing new: whoever is about to submit comes into the same batch."""
        waiting = len(self._waiting)
        if waiting > before and turns < GATHER_TURNS and self._loop is not None:
            self._loop.call_soon(self._gather, waiting, turns + 1)
        else:
            self._flush()

    def _flush(self) -> None:
        self._scheduled = False
        self._flight, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        commands = [command for command, _ in self._flight]
        if self._pace.allows(len(commands)):
            result = self._run(self._store.run_now, commands)
            if result is not None:
                self._landed(result)
                return
        self._inbox.put(commands)

    def _work(self) -> None:
        while (commands := self._inbox.get()) is not None:
            self._hand_back(self._landed, self._run(self._store.run, commands))
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

    def _hand_back(self, callback: Callable[..., None], *arguments: object) -> None:
        # A loop that was closed under us has nobody left to answer.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _landed(self, result: Committed | BaseException) -> None:
        flight, self._flight = self._flight or [], None
        if self._waiting:
            # In the next turn of the loop: the callers of this batch are answered first.
            self._scheduled = True
            loop = self._loop
            assert loop is not None
            loop.call_soon(self._flush)
        else:
            self._idle.set()
        if isinstance(result, BaseException):
            error = result if isinstance(result, LedgerError) else LedgerUnavailable(f"the writer failed: {result}")
            error.__cause__ = result if error is not result else error.__cause__
            for _, future in flight:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(flight, result.answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, LedgerError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if result.last_position >= result.first_position > 0:
            self._on_commit(result)

    async def close(self) -> None:
        """Write what is waiting, then end the thread and close the store."""
        self._closing = True
        await self._idle.wait()
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None
