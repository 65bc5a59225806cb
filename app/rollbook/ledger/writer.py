"""Group commit: callers await their command, and whatever has gathered is committed at once.

No timer: a batch is flushed at the first turn of the loop that brings nothing new to it, and while it is being
written the next one gathers. How a batch is written is its database's affair (`Committer`); until it is taken for that
it still grows. A caller that goes away does not take its command back: what was submitted is carried out.

A batch is bounded in commands and in bytes. Where more waits than it takes, commands without a large payload go first:
no beat waits for a queue of results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .batch import Committed
from .commands import Command
from .database import Committer
from .meters import WriterMeters
from .refusals import LedgerError, LedgerUnavailable

MAX_BATCH = 512
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Payloads of one batch; a larger command has one of its own. Others wait while a batch is sent, beats among them."""
LIGHT_BYTES = MAX_BATCH_BYTES // MAX_BATCH
"""Commands up to this size are light: a batch takes as many as it may."""
GATHER_TURNS = 8
"""A turn takes microseconds on an idle loop. On a busy one each brings more callers, up to this many turns."""

_Waiting = tuple[Command[Any], asyncio.Future[Any], float]
"""A command, its caller, and when it was submitted."""


class GroupCommitWriter:
    """One per process. Start and use it on one event loop."""

    def __init__(self, committer: Committer, on_commit: Callable[[Committed], None]) -> None:
        self.meters = WriterMeters()
        self._committer = committer
        self._on_commit = on_commit
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._light_went_first = False
        self._flight: list[_Waiting] = []
        self._flying = False
        self._scheduled = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to take commands; call it on the loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._committer.start(self._landed)

    async def submit[Answer](self, command: Command[Answer]) -> Answer:
        """Carry a command out; when this returns, its events are on disk.

        Raises:
            LedgerError: a refusal, or `LedgerUnavailable` when nothing could be written.
        """
        if self._loop is None or self._closing:
            raise LedgerUnavailable("the ledger is closed in this process")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append((command, future, perf_counter()))
        self._waiting_bytes += command.size_bytes
        self._idle.clear()
        if not self._flying and not self._scheduled:
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
        self._flying = True
        self._committer.commit(self._take_off)

    def _take_off(self) -> list[Command[Any]]:
        """The batch that is written now, of what waits."""
        if len(self._waiting) <= MAX_BATCH and self._waiting_bytes <= MAX_BATCH_BYTES:
            self._flight, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._light_went_first = False
        else:
            self._flight = self._take_some()
        return [command for command, *_ in self._flight]

    def _take_some(self) -> list[_Waiting]:
        """A batch of what waits, where that is too much for one.

        With more bytes than one takes, every other batch has only light commands, if there are any. In between comes
        one of whatever fits, the oldest in any case: everybody has a turn.
        """
        self._light_went_first = self._waiting_bytes > MAX_BATCH_BYTES and not self._light_went_first
        taken = self._take(light=True) if self._light_went_first else []
        if not taken:
            self._light_went_first = False
            taken = self._take(light=False)
        return taken

    def _take(self, *, light: bool) -> list[_Waiting]:
        taken: list[_Waiting] = []
        taken_bytes = 0
        left: list[_Waiting] = []
        for index, waiting in enumerate(self._waiting):
            size = waiting[0].size_bytes
            if size > LIGHT_BYTES if light else taken and taken_bytes + size > MAX_BATCH_BYTES:
                left.append(waiting)
                continue
            taken.append(waiting)
            taken_bytes += size
            if len(taken) == MAX_BATCH:
                left += self._waiting[index + 1 :]
                break
        self._waiting = left
        self._waiting_bytes -= taken_bytes
        return taken

    def _landed(self, result: Committed | BaseException) -> None:
        if not self._flight:
            self._take_off()  # nothing can be written: these are told so
        flight, self._flight, self._flying = self._flight, [], False
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
            self.meters.failed_batches += 1
            for _, future, _ in flight:
                if not future.done():
                    future.set_exception(error)
            return
        committed_at = perf_counter()
        self.meters.batch_commands.add(len(flight))
        for (_, future, submitted_at), answer in zip(flight, result.answers, strict=True):
            self.meters.append_sec.add(committed_at - submitted_at)
            if future.done():
                continue
            if isinstance(answer, LedgerError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if result.last_position >= result.first_position > 0:
            self._on_commit(result)

    async def close(self) -> None:
        """Write what is waiting, then close the committer."""
        self._closing = True
        await self._idle.wait()
        await self._committer.close()
