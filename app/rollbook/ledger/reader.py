"""Reads: short ones at once on the loop's thread, operators' long ones through aiosqlite.

A short read by key takes some 20 µs and, in WAL mode, waits for no writer; a hop to a thread would cost several
times that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import sqlalchemy as sa

from rollbook_client.events import RolloutAdmitted, RolloutFinished
from rollbook_projections import RolloutState

from . import codec
from . import statements as sql
from .engines import async_reader_engine, reader_engine
from .refusals import LedgerUnavailable
from .transaction import QueueCount

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

PAGE_BYTES = 4 * 1024 * 1024
"""Pages of events are cut before their payloads exceed this, the first event excepted."""

_EVENT_COLUMNS = "e.position, e.number, r.rollout_id, e.seq, e.type, e.version, e.recorded_at, e.payload, e.hash"
_EVENTS = f"SELECT {_EVENT_COLUMNS} FROM events e JOIN rollouts r ON r.number = e.number"

_WORK = (
    f"SELECT e.type, e.version, e.payload, s.sealed, {', '.join(f'r.{name}' for name in sql.STATE_COLUMNS)}"
    " FROM events e JOIN secrets s ON s.number = e.number JOIN rollouts r ON r.number = e.number WHERE e.position = ?"
)


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it lies in the ledger; ``payload`` is its JSON text, exactly."""

    position: int
    number: int
    rollout_id: str
    seq: int
    type: str
    version: int
    recorded_at: int
    payload: str
    hash: bytes


class Work(msgspec.Struct, frozen=True):
    """What a claimed rollout's execution needs."""

    state: RolloutState
    """As it stands now, which may be later than the claim."""
    request: RolloutAdmitted
    sealed: bytes


class Member(msgspec.Struct, frozen=True):
    """A registered process."""

    member_id: str
    kind: str
    host: str
    pid: int
    entrypoint: str | None
    capacity: int
    started_at: int
    beat_at: int
    stopped_at: int | None
    accepting: int
    trouble: str | None


_MEMBER_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(Member))


class Reader:
    """Reads of one process. Short reads are plain calls; long reads are coroutines."""

    def __init__(self, url: sa.URL) -> None:
        self._engine = reader_engine(url)
        self._url = url
        self._long: AsyncEngine | None = None
        self._connection: sa.PoolProxiedConnection | None = None

    def query(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a short read.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        try:
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            db = cast("sqlite3.Connection", self._connection.driver_connection)
            return db.execute(text, parameters).fetchall()
        except (sqlite3.DatabaseError, sa.exc.DBAPIError) as error:
            if self._connection is not None:
                self._connection.invalidate()
                self._connection = None
            raise LedgerUnavailable(f"the ledger cannot be read now: {error}") from error

    async def long_query(self, text: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a long read, off the loop.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        if self._long is None:
            self._long = async_reader_engine(self._url)
        try:
            async with self._long.connect() as connection:
                result = await connection.exec_driver_sql(text, parameters)
                return [tuple(row) for row in result.fetchall()]
        except sa.exc.DBAPIError as error:
            raise LedgerUnavailable(f"the ledger cannot be read now: {error.orig}") from error
        except sa.exc.TimeoutError as error:
            raise LedgerUnavailable("too many long reads of the ledger are under way; try again later") from error

    def close_short(self) -> None:
        """Close the connection of short reads; all there is where no long read was made."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()

    async def close(self) -> None:
        """Close all connections."""
        self.close_short()
        if self._long is not None:
            await self._long.dispose()

    def last_position(self) -> int:
        """The position of the newest event; 0 in an empty ledger."""
        position: int = self.query("SELECT position FROM ledger_head WHERE id = 1")[0][0]
        return position

    def changes_after(self, position: int, limit: int) -> list[tuple[int, int, str]]:
        """(position, rollout number, event type) of the next events."""
        text = "SELECT position, number, type FROM events WHERE position > ? ORDER BY position LIMIT ?"
        return [(row[0], row[1], row[2]) for row in self.query(text, (position, limit))]

    def state(self, rollout_id: str) -> RolloutState | None:
        """A rollout's state by id."""
        try:
            rollout_id.encode()
        except UnicodeEncodeError:
            return None
        rows = self.query(f"{sql.SELECT_STATE} WHERE rollout_id = ?", (rollout_id,))
        return RolloutState(*rows[0]) if rows else None

    def states(self, numbers: Sequence[int]) -> list[RolloutState]:
        """States by rollout number."""
        found: list[RolloutState] = []
        for start in range(0, len(numbers), sql.SIZES[0]):
            part = numbers[start : start + sql.SIZES[0]]
            marks = ", ".join("?" * len(part))
            rows = self.query(f"{sql.SELECT_STATE} WHERE number IN ({marks})", part)
            found.extend(RolloutState(*row) for row in rows)
        return found

    def result(self, state: RolloutState) -> RolloutFinished:
        """The terminal event of a finished rollout."""
        rows = self.query("SELECT type, version, payload FROM events WHERE position = ?", (state.result_position,))
        if not rows:
            raise LedgerUnavailable(f"the result of rollout {state.rollout_id!r} is not in the ledger any more")
        event = codec.decode(*rows[0])
        assert isinstance(event, RolloutFinished)
        return event

    def work(self, states: Sequence[RolloutState]) -> list[Work]:
        """Requests and sealed secrets of claimed rollouts; those whose rollout is over meanwhile are left out."""
        found = []
        for state in states:
            for kind, version, payload, sealed, *row in self.query(_WORK, (state.request_position,)):
                event = codec.decode(kind, version, payload)
                assert isinstance(event, RolloutAdmitted)
                found.append(Work(RolloutState(*row), event, sealed))
        return found

    def counts(self) -> dict[str, QueueCount]:
        """Waiting and running rollouts by queue."""
        return {row[0]: QueueCount(row[1], row[2]) for row in self.query(sql.SELECT_COUNTS)}

    def members(self, kind: str, seen_since: int) -> list[Member]:
        """Registered processes of a kind that did not stop and were seen since then."""
        rows = self.query(
            f"SELECT {_MEMBER_COLUMNS} FROM members WHERE kind = ? AND stopped_at IS NULL AND beat_at >= ?",
            (kind, seen_since),
        )
        return [Member(*row) for row in rows]

    def stale_schedulers(self, before: int) -> bool:
        """Whether a scheduler that did not stop was last seen before then."""
        text = "SELECT 1 FROM members WHERE kind = 'scheduler' AND stopped_at IS NULL AND beat_at < ? LIMIT 1"
        return bool(self.query(text, (before,)))

    def owned_by(self, scheduler: str) -> list[RolloutState]:
        """Rollouts with an open attempt of this scheduler."""
        rows = self.query(f"{sql.SELECT_STATE} WHERE scheduler IS NOT NULL AND scheduler = ?", (scheduler,))
        return [RolloutState(*row) for row in rows]

    def sweep_due(self, now: int) -> tuple[bool, bool, bool]:
        """Whether a lease, a queued deadline or an orphaned attempt waits for a sweep."""
        seen = self.query(sql.SELECT_API_SEEN)[0][0]
        return (
            bool(self.query(sql.SELECT_EXPIRED, (now, seen, 1))),
            bool(self.query(sql.SELECT_LATE, (now, 1))),
            bool(self.query(sql.SELECT_ORPHANED, (1,))),
        )

    async def events_page(
        self, *, after: int = 0, rollout_id: str | None = None, types: Sequence[str] = (), limit: int = 1000
    ) -> list[StoredEvent]:
        """Events after a position (of one rollout: after a seq), at most ``limit`` and about 4 MiB of payload.

        ``types`` leaves only those; none means all. Long histories are read in portions so that a page of huge
        payloads never lies in memory as a whole.
        """
        key, condition, chosen = _events_of(rollout_id, types)
        text = f"{_EVENTS} WHERE {condition} AND {key} > ? ORDER BY {key} LIMIT ?"
        events: list[StoredEvent] = []
        size = 0
        while len(events) < limit:
            portion = min(64, limit - len(events))
            rows = await self.long_query(text, (*chosen, after, portion))
            for row in rows:
                event = StoredEvent(*row)
                size += len(event.payload)
                if events and size > PAGE_BYTES:
                    return events
                events.append(event)
                after = event.position if rollout_id is None else event.seq
            if len(rows) < portion:
                break
        return events

    async def before_last_events(self, count: int, *, rollout_id: str | None = None, types: Sequence[str] = ()) -> int:
        """After which position (of one rollout: after which seq) the last ``count`` events come."""
        key, condition, chosen = _events_of(rollout_id, types)
        text = (
            f"SELECT {key} FROM events e JOIN rollouts r ON r.number = e.number"
            f" WHERE {condition} ORDER BY {key} DESC LIMIT 1 OFFSET ?"
        )
        rows = await self.long_query(text, (*chosen, count))
        return int(rows[0][0]) if rows else 0


def _events_of(rollout_id: str | None, types: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """What a choice of events is ordered by, its condition and the parameters of that."""
    condition, parameters = "1 = 1", tuple(types)
    if types:
        condition = f"e.type IN ({', '.join('?' * len(types))})"
    if rollout_id is None:
        return "e.position", condition, parameters
    return "e.seq", f"{condition} AND r.rollout_id = ?", (*parameters, rollout_id)
