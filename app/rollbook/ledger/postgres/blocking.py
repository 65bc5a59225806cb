"""PostgreSQL for callers that block: the command line's passes over the ledger, migrations, checks at start.

The driver is asynchronous only, so a thread with a loop of its own holds the connection; it can be used from anywhere,
a running loop included.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from rollbook_projections import Row

from .connecting import Connection, connect, is_outage, unavailable, unusable
from .dialect import numbered


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollbook-postgres", daemon=True)
        self._thread.start()

    def run[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine that runs there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """An event loop in a thread that ends with the block."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()


class BlockingConnection:
    """One connection, used by one caller."""

    def __init__(self, thread: LoopThread, connection: Connection) -> None:
        self._thread = thread
        self._connection = connection

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a statement; parameters are marked `?`."""
        rows: list[Row] = self._thread.run(self._connection.fetch(numbered(text), *parameters))
        return rows

    def execute(self, text: str) -> str:
        """Statements without parameters; the server's word for what the last one did."""
        done: str = self._thread.run(self._connection.execute(text))
        return done

    def change(self, text: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement changed; parameters are marked `?`."""
        done: str = self._thread.run(self._connection.execute(numbered(text), *parameters))
        return int(done.rpartition(" ")[2])

    def change_all(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """A statement for each of these parameters."""
        self._thread.run(self._connection.executemany(numbered(text), rows))


@contextmanager
def blocking_connection(url: sa.URL, *, doing: str) -> Iterator[BlockingConnection]:
    """A connection for the block; ``doing`` is `read` or `written`.

    Raises:
        LedgerUnavailable: the database cannot be reached, or fails within the block.
    """
    with loop_thread() as thread:
        try:
            connection = thread.run(connect(url))
        except Exception as error:
            if not is_outage(error):
                raise
            raise unusable(error, url) from error
        try:
            try:
                yield BlockingConnection(thread, connection)
            finally:
                thread.run(_end(connection))
        except Exception as error:
            if not is_outage(error):
                raise
            raise unavailable(error, doing=doing) from error


async def _end(connection: Connection) -> None:
    connection.terminate()
