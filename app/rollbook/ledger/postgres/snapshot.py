"""A PostgreSQL ledger at one moment: a read-only transaction, paged by key so that no cursor is kept on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from rollbook_projections import Row
from rollbook_projections.guards import POSTGRES_FUNCTIONS_2, POSTGRES_GUARDS_2

from .blocking import BlockingConnection, blocking_connection

PAGE_ROWS = 1_000
FIRST_PAGE_ROWS = 100
PAGE_BYTES = 4 * 1024 * 1024
"""Of payloads, about: a page lies in memory."""
GUARDS = POSTGRES_GUARDS_2
"""The triggers that keep events and what is left of archived ones, and what each must say."""

_AUDITED = """
    SELECT e.position, e.number, e.seq, convert_to(e.type, 'UTF8'), e.version, e.recorded_at,
           convert_to(e.payload, 'UTF8'), e.hash, true, r.rollout_id, r.seq, r.head
    FROM events e LEFT JOIN rollouts r ON r.number = e.number
    WHERE e.position > ? ORDER BY e.position LIMIT ?
"""
_EVENTS_OF = """
    SELECT position, number, seq, type, version, recorded_at, convert_to(payload, 'UTF8'), hash FROM events
    WHERE number = ANY(?::bigint[]) AND (number, seq) > (?, ?) ORDER BY number, seq LIMIT ?
"""
# The functions must not see a session's temporary tables before ours, either.
_GUARDS = """
    SELECT t.tgname, c.relname, t.tgtype::int, p.proname, p.prosrc
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid IN ('events'::regclass, 'archived_rollouts'::regclass, 'archives'::regclass)
      AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL AND t.tgattr = ''
      AND p.proconfig = ARRAY['search_path=pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp']
"""


class PageStream:
    """Rows of a table, a page at a time.

    A page is not asked for while another is used: the driver's thread and the caller's would only wait for each other.
    """

    def __init__(self, connection: BlockingConnection, table: str, columns: Sequence[str], key: Sequence[str]) -> None:
        self._connection = connection
        shown = ", ".join("convert_to(payload, 'UTF8')" if name == "payload" else name for name in columns)
        marks = ", ".join("?" * len(key))
        self._text = (
            f"SELECT {shown} FROM {table} WHERE ({', '.join(key)}) > ({marks}) ORDER BY {', '.join(key)} LIMIT ?"
        )
        self._at = [list(columns).index(name) for name in key]
        self._payload = list(columns).index("payload") if "payload" in columns else None
        self._last: tuple[Any, ...] = (-(2**31),) * len(key)
        self._page: list[Row] = []
        self._used = 0
        self._size = FIRST_PAGE_ROWS
        self._ended = False

    def fetch(self, count: int) -> list[Row]:
        found = self._take(count)
        while len(found) < count and not self._ended:
            self._turn_page()
            found.extend(self._take(count - len(found)))
        return found

    def _take(self, count: int) -> list[Row]:
        found = self._page[self._used : self._used + count]
        self._used += len(found)
        return found

    def _turn_page(self) -> None:
        page = self._connection.rows(self._text, (*self._last, self._size))
        self._ended = len(page) < self._size
        self._page, self._used = page, 0  # the driver's records are as good as tuples
        if page:
            self._last = tuple(page[-1][index] for index in self._at)
            self._size = self._next_size()

    def _next_size(self) -> int:
        """As many rows as a page may have, where their payloads go on as large as they are."""
        if self._payload is None:
            return PAGE_ROWS
        at = self._payload
        mean = sum([len(row[at]) for row in self._page]) // len(self._page) + 1
        return max(1, min(PAGE_ROWS, PAGE_BYTES // mean))


class PostgresSnapshot:
    """One connection in a read-only transaction."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.rows(text, parameters)

    def stream(self, table: str, columns: Sequence[str], key: Sequence[str]) -> PageStream:
        return PageStream(self._connection, table, columns, key)

    def audited_events(self, after: int, limit: int) -> list[Row]:
        return self.rows(_AUDITED, (after, limit))

    def events_of(self, numbers: Sequence[int], *, after: tuple[int, int], limit: int) -> list[Row]:
        return self.rows(_EVENTS_OF, (list(numbers), *after, limit))

    def damage(self) -> Iterator[str]:
        """Data checksums are the server's affair: it refuses to read a damaged page."""
        return iter(())

    def missing_guards(self) -> Iterator[str]:
        found = {name: rest for name, *rest in self.rows(_GUARDS)}
        for name, guard in GUARDS.items():
            says = [guard.table, guard.type, guard.function, POSTGRES_FUNCTIONS_2[guard.function]]
            if found.get(name) != says:
                yield name


@contextmanager
def snapshot(url: sa.URL) -> Iterator[PostgresSnapshot]:
    """The ledger as it stands at the first read."""
    with blocking_connection(url, doing="read") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield PostgresSnapshot(connection)
