"""An SQLite ledger at one moment: whole passes by cursors, its pages and its guards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import Row
from rollbook_projections.guards import SQLITE_GUARDS_2

from .engines import reader_engine

MAX_PAGE_FINDINGS = 10
GUARDS = SQLITE_GUARDS_2
"""The triggers that keep events and what is left of archived ones, and what each must say."""


# The table is read in the order of its pages and by its own bytes: an index may hold the old ones.
_AUDITED = """
    SELECT e.position, e.number, e.seq, e.type, e.version, e.recorded_at, e.payload, e.hash,
           typeof(e.type) = 'text' AND typeof(e.payload) = 'text' AND typeof(e.hash) = 'blob',
           r.rollout_id, r.seq, r.head
    FROM events e NOT INDEXED LEFT JOIN rollouts r ON r.number = e.number
    WHERE e.position > ? ORDER BY e.position LIMIT ?
"""


class CursorStream:
    """Rows of one cursor."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def fetch(self, count: int) -> list[Row]:
        with _damage_told():
            return self._cursor.fetchmany(count)


class SqliteSnapshot:
    """One connection in a read transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with _damage_told():
            return self._db.execute(text, parameters).fetchall()

    def stream(self, table: str, columns: Sequence[str], key: Sequence[str]) -> CursorStream:
        # The payload as bytes: text that is damaged must not end the pass where it cannot be decoded.
        shown = ", ".join("CAST(payload AS BLOB)" if column == "payload" else column for column in columns)
        # Without a range the planner sorts all events instead of walking along the key's index.
        within = f" WHERE ({', '.join(key)}) > (0, 0)" if table == "events" else ""
        with _damage_told():
            return CursorStream(self._db.execute(f"SELECT {shown} FROM {table}{within} ORDER BY {', '.join(key)}"))

    def audited_events(self, after: int, limit: int) -> list[Row]:
        return self.rows(_AUDITED, (after, limit))

    def events_of(self, numbers: Sequence[int], *, after: tuple[int, int], limit: int) -> list[Row]:
        return self.rows(
            "SELECT position, number, seq, type, version, recorded_at, CAST(payload AS BLOB), hash FROM events"
            f" WHERE number IN ({', '.join('?' * len(numbers))}) AND (number, seq) > (?, ?)"
            " ORDER BY number, seq LIMIT ?",
            (*numbers, *after, limit),
        )

    def damage(self) -> Iterator[str]:
        for (line,) in self.rows(f"PRAGMA integrity_check({MAX_PAGE_FINDINGS})"):
            if line not in ("ok", b"ok"):
                yield shown_text(line)

    def missing_guards(self) -> Iterator[str]:
        rows = self.rows("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        found = {shown_text(name): shown_text(text) for name, text in rows}
        return (name for name, says in GUARDS.items() if found.get(name) != says)


def shown_text(value: Any) -> str:
    """A text of the database, whatever it holds."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LedgerUnavailable(
            f"the ledger cannot be read: {error}; look for damage with `rollbook audit verify`"
        ) from error


@contextmanager
def snapshot(url: sa.URL, *, undecoded: bool = False) -> Iterator[SqliteSnapshot]:
    """The ledger as it stands at the first read; ``undecoded`` gives texts as bytes: damaged ones are no texts."""
    engine = reader_engine(url)
    try:
        held = engine.raw_connection()
        try:
            db = cast("sqlite3.Connection", held.driver_connection)
            if undecoded:
                db.text_factory = bytes
            db.execute("BEGIN")
            yield SqliteSnapshot(db)
        finally:
            held.invalidate()
    except (sqlite3.DatabaseError, sa.exc.DBAPIError) as error:
        raise LedgerUnavailable(f"the ledger cannot be read now: {error}; look who holds it") from error
    finally:
        engine.dispose()
