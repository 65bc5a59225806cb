"""Changes beside the commands on SQLite: a connection that takes its turn with the writers, a transaction at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import Row

from .engines import lock_path, writer_engine
from .locks import FileLock

TURN_LIMIT_SEC = 15.0
"""How long to wait for a turn; writers may have much to do."""


class SqliteTurn:
    """A transaction's statements."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._db.execute(text, parameters).fetchall()

    def change(self, text: str, parameters: Sequence[Any] = ()) -> int:
        return self._db.execute(text, parameters).rowcount

    def change_all(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        self._db.executemany(text, rows)


class SqliteUpkeep:
    """One connection, and the lock that orders the writing processes."""

    def __init__(self, db: sqlite3.Connection, lock: FileLock) -> None:
        self._db = db
        self._lock = lock

    @contextmanager
    def turn(self) -> Iterator[SqliteTurn]:
        try:
            self._lock.acquire(TURN_LIMIT_SEC)
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield SqliteTurn(self._db)
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._lock.release()
        except (sqlite3.DatabaseError, OSError) as error:
            raise LedgerUnavailable(f"the ledger cannot be written now: {error}") from error


@contextmanager
def upkeep(url: sa.URL) -> Iterator[SqliteUpkeep]:
    """A connection for the block."""
    engine = writer_engine(url, busy_timeout_sec=TURN_LIMIT_SEC)
    lock = FileLock(lock_path(url))
    try:
        held = engine.raw_connection()
        try:
            yield SqliteUpkeep(cast("sqlite3.Connection", held.driver_connection), lock)
        finally:
            held.close()
    except sa.exc.DBAPIError as error:
        raise LedgerUnavailable(f"the ledger cannot be written now: {error.orig}") from error
    finally:
        lock.close()
        engine.dispose()
