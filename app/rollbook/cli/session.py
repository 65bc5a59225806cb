"""The ledger as a command reads it: opened for one command, closed whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.database import database_of
from rollbook.ledger.reader import Reader
from rollbook.ledger.schema import check
from rollbook.ledger.urls import parse_url


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived; the command ends where it stands and cleans up."""


class ReadSession:
    """A reader and a loop for its reads. Commands print between reads, outside the loop."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.reader = Reader(database_of(url))
        self._runner = asyncio.Runner()

    def run[Answer](self, read: Coroutine[Any, Any, Answer]) -> Answer:
        """A read's answer."""
        return self._runner.run(read)

    def close(self) -> None:
        """Close all connections; one left open would hold the process."""
        self._runner.run(self.reader.close())
        self._runner.close()


@contextlib.contextmanager
def read_session(database_url: str) -> Iterator[ReadSession]:
    """The ledger for reading.

    Raises:
        DatabaseUrlError: the URL cannot be used.
        SchemaError: there is no ledger, or it is not of this version.
    """
    url = parse_url(database_url)
    check(url)
    session = ReadSession(url)
    try:
        yield session
    finally:
        session.close()


class Interrupts:
    """When a block may be ended by a signal: at once, but a read that is under way is cancelled first."""

    def __init__(self) -> None:
        self._wanted = False
        self._reading = False
        self._cancel: Callable[[], object] | None = None

    def arrive(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self._wanted = True
        if not self._reading:
            raise Terminated
        # An error raised here would come out of whatever the loop is doing, the database driver's own code too.
        if self._cancel is not None:
            self._cancel()

    def run[Answer](self, session: ReadSession, read: Coroutine[Any, Any, Answer]) -> Answer:
        """A read's answer.

        Raises:
            Terminated: a signal arrived meanwhile; the connection in use was given back.
        """
        self._reading = True
        try:
            answer = session.run(self._cancellable(read))
        except asyncio.CancelledError:
            raise Terminated from None
        finally:
            self._reading = False
        if self._wanted:
            raise Terminated
        return answer

    async def _cancellable[Answer](self, read: Coroutine[Any, Any, Answer]) -> Answer:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        try:
            return await read
        finally:
            self._cancel = None


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Let SIGTERM and SIGINT end the block quietly: for commands that go on until they are told to stop."""
    interrupts = Interrupts()
    # SIGINT too: a shell starts jobs in the background with it ignored, and it would stay so.
    before = {number: signal.signal(number, interrupts.arrive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with contextlib.suppress(Terminated):
            yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
