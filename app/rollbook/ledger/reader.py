"""What the ledger's processes and operators read, on whatever database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from rollbook_client.events import RolloutAdmitted, RolloutFinished
from rollbook_projections import RolloutState

from . import codec
from . import statements as sql
from .archives.stubs import SELECT_ARCHIVED, Archived
from .database import Database, Reads
from .drains import SELECT_CLOSURES
from .gathering import Gathering
from .refusals import Closure, LedgerUnavailable, RolloutArchived
from .transaction import QueueCount

RESULTS_TOGETHER = 32
"""Finished rollouts whose results one read brings at most: each may be large."""
PAGE_BYTES = 4 * 1024 * 1024
"""Pages of events are cut before their payloads exceed this, the first event excepted."""

LARGEST_SEQ = 2**31 - 1
"""The column's type holds no larger one, and one database refuses to compare it with one."""
_EVENT_COLUMNS = "e.position, e.number, r.rollout_id, e.seq, e.type, e.version, e.recorded_at, e.payload, e.hash"
_EVENTS = f"SELECT {_EVENT_COLUMNS} FROM events e JOIN rollouts r ON r.number = e.number"

# A rollout's row stands beside the newest of its events alone.
_NEWS = (
    f"SELECT e.position, e.number, e.type, {', '.join(f'r.{name}' for name in sql.STATE_COLUMNS)}"
    " FROM events e LEFT JOIN rollouts r ON r.number = e.number AND r.seq = e.seq"
    " WHERE e.position > ? ORDER BY e.position LIMIT ?"
)
_WORK = (
    f"SELECT e.type, e.version, e.payload, s.sealed, {', '.join(f'r.{name}' for name in sql.STATE_COLUMNS)}"
    " FROM events e JOIN secrets s ON s.number = e.number JOIN rollouts r ON r.number = e.number"
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


class News(msgspec.Struct, frozen=True):
    """An event, as far as a feed looks at it."""

    position: int
    number: int
    type: str
    state: RolloutState | None
    """Its rollout's, where no later event changed that."""


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
    """Reads of one process."""

    def __init__(self, database: Database, reads: Reads | None = None) -> None:
        self._database = database
        self._reads = reads or database.reads()
        self._statements = sql.Statements(database.dialect)
        self.backend = database.url.get_backend_name()
        """The database's name, as `view_sql` takes it."""
        self._results = Gathering(self._payloads, most=RESULTS_TOGETHER)
        self.query = self._reads.query
        self.long_query = self._reads.long_query

    @asynccontextmanager
    async def at_one_moment(self) -> AsyncIterator[Reader]:
        """A reader whose reads all see the ledger as it stands when the first of them is made."""
        async with self._reads.at_one_moment() as reads:
            yield Reader(self._database, reads)

    async def close(self) -> None:
        """Close all connections."""
        await self._reads.close()

    async def last_position(self) -> int:
        """The position of the newest event; 0 in an empty ledger."""
        position: int = (await self.query("SELECT position FROM ledger_head WHERE id = 1"))[0][0]
        return position

    async def news_after(self, position: int, limit: int) -> list[News]:
        """The next events, and what they left: one read for all that a feed tells."""
        return [
            News(row[0], row[1], row[2], None if row[3] is None else RolloutState(*row[3:]))
            for row in await self.query(_NEWS, (position, limit))
        ]

    async def state(self, rollout_id: str) -> RolloutState | None:
        """A rollout's state by id."""
        if not sql.storable(rollout_id):
            return None
        rows = await self.query(f"{sql.SELECT_STATE} WHERE rollout_id = ?", (rollout_id,))
        return RolloutState(*rows[0]) if rows else None

    async def states_of(self, rollout_ids: Sequence[str]) -> list[RolloutState]:
        """States by id."""
        return await self._states("rollout_id", rollout_ids)

    async def states(self, numbers: Sequence[int]) -> list[RolloutState]:
        """States by rollout number."""
        return await self._states("number", numbers)

    async def _states(self, column: str, values: Sequence[int] | Sequence[str]) -> list[RolloutState]:
        found: list[RolloutState] = []
        for query in self._statements.states(column, values):
            found.extend(RolloutState(*row) for row in await self.query(*query))
        return found

    async def result(self, state: RolloutState) -> RolloutFinished:
        """The terminal event of a finished rollout.

        Raises:
            RolloutArchived: it is in an archive's file.
            LedgerUnavailable: the ledger cannot be read, or it is gone.
        """
        assert state.result_position is not None, "only a finished rollout has a result"
        row = await self._results.get(state.result_position)
        if row is None:
            archived = await self.archived(state.number)
            if archived is not None:
                raise RolloutArchived(state.rollout_id, str(archived))
            raise LedgerUnavailable(f"the result of rollout {state.rollout_id!r} is not in the ledger any more")
        event = codec.decode(*row)
        assert isinstance(event, RolloutFinished)
        return event

    async def _payloads(self, positions: list[int]) -> dict[int, tuple[str, int, str]]:
        """Type, version and payload of the events at these positions."""
        found: dict[int, tuple[str, int, str]] = {}
        for condition, parameters in self._statements.any_of("position", positions):
            rows = await self.query(
                f"SELECT position, type, version, payload FROM events WHERE {condition}", parameters
            )
            found |= {row[0]: (row[1], row[2], row[3]) for row in rows}
        return found

    async def archived(self, number: int) -> Archived | None:
        """Where a rollout's events are, if they are not in the ledger."""
        rows = await self.query(SELECT_ARCHIVED, (number,))
        return Archived(*rows[0]) if rows else None

    async def work(self, states: Sequence[RolloutState]) -> list[Work]:
        """Requests and sealed secrets of claimed rollouts; those whose rollout is over meanwhile are left out."""
        found = []
        for condition, positions in self._statements.any_of("e.position", [state.request_position for state in states]):
            for kind, version, payload, sealed, *row in await self.query(f"{_WORK} WHERE {condition}", positions):
                event = codec.decode(kind, version, payload)
                assert isinstance(event, RolloutAdmitted)
                found.append(Work(RolloutState(*row), event, sealed))
        return found

    async def counts(self) -> dict[str, QueueCount]:
        """Waiting and running rollouts by queue."""
        return {row[0]: QueueCount(row[1], row[2]) for row in await self.query(sql.SELECT_COUNTS)}

    async def closures(self) -> list[Closure]:
        """Where admission is closed now."""
        return [Closure(*row) for row in await self.query(SELECT_CLOSURES)]

    async def members(self, kind: str, seen_since: int) -> list[Member]:
        """Registered processes of a kind that did not stop and were seen since then."""
        rows = await self.query(
            f"SELECT {_MEMBER_COLUMNS} FROM members WHERE kind = ? AND stopped_at IS NULL AND beat_at >= ?",
            (kind, seen_since),
        )
        return [Member(*row) for row in rows]

    async def stale_schedulers(self, before: int) -> bool:
        """Whether a scheduler that did not stop was last seen before then."""
        text = "SELECT 1 FROM members WHERE kind = 'scheduler' AND stopped_at IS NULL AND beat_at < ? LIMIT 1"
        return bool(await self.query(text, (before,)))

    async def owned_by(self, scheduler: str) -> list[RolloutState]:
        """Rollouts with an open attempt of this scheduler."""
        rows = await self.query(f"{sql.SELECT_STATE} WHERE scheduler IS NOT NULL AND scheduler = ?", (scheduler,))
        return [RolloutState(*row) for row in rows]

    async def sweep_due(self, now: int) -> tuple[bool, bool, bool]:
        """Whether a lease, a queued deadline or an orphaned attempt waits for a sweep."""
        seen = (await self.query(sql.SELECT_API_SEEN))[0][0]
        return (
            bool(await self.query(self._statements.select_expired, (now, seen, 1))),
            bool(await self.query(sql.SELECT_LATE, (now, 1))),
            bool(await self.query(self._statements.select_orphaned, (1,))),
        )

    async def lost_owners(self, stale: int) -> dict[str, str | None]:
        """Schedulers with open attempts that stopped or were last seen until ``stale``, each with its host if known."""
        return dict(await self.query(*self._statements.lost_owners(stale)))

    async def events_page(
        self, *, after: int = 0, rollout_id: str | None = None, types: Sequence[str] = (), limit: int = 1000
    ) -> list[StoredEvent]:
        """Events after a position (of one rollout: after a seq), at most ``limit`` and about 4 MiB of payload.

        ``types`` leaves only those; none means all. Long histories are read in portions so that a page of huge
        payloads never lies in memory as a whole.
        """
        if not _are_storable(rollout_id, types) or (rollout_id is not None and after >= LARGEST_SEQ):
            return []
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
        if not _are_storable(rollout_id, types):
            return 0
        key, condition, chosen = _events_of(rollout_id, types)
        text = (
            f"SELECT {key} FROM events e JOIN rollouts r ON r.number = e.number"
            f" WHERE {condition} ORDER BY {key} DESC LIMIT 1 OFFSET ?"
        )
        rows = await self.long_query(text, (*chosen, count))
        return int(rows[0][0]) if rows else 0


def _are_storable(rollout_id: str | None, types: Sequence[str]) -> bool:
    return all(map(sql.storable, types)) and (rollout_id is None or sql.storable(rollout_id))


def _events_of(rollout_id: str | None, types: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """What a choice of events is ordered by, its condition and the parameters of that."""
    condition, parameters = "1 = 1", tuple(types)
    if types:
        condition = f"e.type IN ({', '.join('?' * len(types))})"
    if rollout_id is None:
        return "e.position", condition, parameters
    return "e.seq", f"{condition} AND r.rollout_id = ?", (*parameters, rollout_id)
