"""Replay: the whole ledger folded anew from its events, and compared with the rows that the writer keeps.

Events are streamed rollout by rollout, in the order of each one's history. That is the order of the history tables'
keys too, so everything is compared in one pass over parallel streams, with some thousand rows in memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook_projections import HistoryRows, Recorded, RolloutState, Row, add_history, evolve, tables

from . import codec
from . import statements as sql
from .database import Snapshot, database_of
from .refusals import LedgerUnavailable
from .schema import check_database
from .transaction import Head, QueueCount
from .urls import parse_url

MAX_DIFFERENCES = 20
ABSENT = "no row"
PRESENT = "a row"
SHOWN_CHARACTERS = 200
CHUNK_EVENTS = 1_000

_EVENT_COLUMNS = ("position", "number", "seq", "type", "version", "recorded_at", "payload", "hash")
# Plain texts: SQLAlchemy's own kind of them has no JSON form.
_KEYS = {str(table.name): len(table.primary_key.columns) for table in tables.HISTORY_TABLES}
_COLUMNS = {str(table.name): [str(column.name) for column in table.columns] for table in tables.HISTORY_TABLES}
_KEYS["rollouts"] = 1
_COLUMNS["rollouts"] = list(sql.STATE_COLUMNS)


class Replay(msgspec.Struct, frozen=True):
    """What the events add up to: where the ledger ends, its queues, and its rollouts by status."""

    head: Head
    queues: dict[str, QueueCount]
    statuses: dict[str, int]


class Difference(msgspec.Struct, frozen=True):
    """One place where a live row is not what the events say. ``key`` is the row's; ``column`` is ``*`` for a row
    that is there on one side only."""

    table: str
    key: str
    column: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.table}[{self.key}].{self.column}: expected {_shown(self.expected)}, found {_shown(self.found)}"


class Verification(msgspec.Struct, frozen=True):
    """What was compared and where it differs: the first 20 differences, at which the comparison ends."""

    events: int
    rollouts: int
    differences: list[Difference]

    @property
    def cut(self) -> bool:
        """Whether it ended early, so that there may be more differences."""
        return len(self.differences) >= MAX_DIFFERENCES


class _Chunk(msgspec.Struct):
    """Whole rollouts, replayed: those numbered up to ``last``. ``errors`` says of numbers where their fold stopped."""

    states: list[RolloutState]
    history: HistoryRows
    errors: dict[int, str]
    last: int = 0
    events: int = 0
    position: int = 0


def replay(url: str | sa.URL) -> Replay:
    """Fold all events into fresh totals, within one consistent view of the ledger.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read, or its events do not fold (`verify_replay` names which).
    """
    with _snapshot(url) as snapshot:
        totals = _Totals()
        for chunk in _fold(snapshot):
            for error in chunk.errors.values():
                raise LedgerUnavailable(f"{error}; look for damage with `rollbook audit verify`")
            totals.add(chunk)
        return totals.result()


def verify_replay(url: str | sa.URL) -> list[Difference]:
    """The differences that `verify` finds; empty when the ledger is whole."""
    return verify(url).differences


def verify(url: str | sa.URL) -> Verification:
    """Compare the live rows with a replay.

    `rollouts`, every history table, `queue_counts` and `ledger_head` are compared, all in one consistent view, so the
    answer is right while others write.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read.
    """
    with _snapshot(url) as snapshot:
        comparison = _Comparison(snapshot)
        totals = _Totals()
        events = rollouts = 0
        for chunk in _fold(snapshot):
            events += chunk.events
            rollouts += len(chunk.states) + len(chunk.errors)
            totals.add(chunk)
            comparison.chunk(chunk)
            if comparison.full:
                break
        else:
            comparison.leftovers()
            comparison.totals(totals.result())
        return Verification(events, rollouts, comparison.differences[:MAX_DIFFERENCES])


@contextmanager
def _snapshot(url: str | sa.URL) -> Iterator[Snapshot]:
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    with database.snapshot() as snapshot:
        yield snapshot


def _events(snapshot: Snapshot) -> Iterator[Row]:
    """All events, rollout by rollout."""
    stream = snapshot.stream("events", _EVENT_COLUMNS, ("number", "seq"))
    while rows := stream.fetch(CHUNK_EVENTS):
        yield from rows


def _fold(snapshot: Snapshot) -> Iterator[_Chunk]:
    """Every rollout's events folded, in the order of their numbers."""
    decode = codec.decode
    chunk = _Chunk([], defaultdict(list), {})
    number = 0
    state: RolloutState | None = None
    for position, owner, seq, kind, version, recorded_at, payload, digest in _events(snapshot):
        if owner != number:
            if state is not None:
                chunk.states.append(state)
            if chunk.events >= CHUNK_EVENTS:
                yield chunk
                chunk = _Chunk([], defaultdict(list), {})
            chunk.last = number = owner
            state = None
        chunk.events += 1
        if position > chunk.position:
            chunk.position = position
        if number in chunk.errors:
            continue
        try:
            record = Recorded(position, number, seq, recorded_at, digest, decode(kind, version, payload))
            state = evolve(state, record)
            add_history(record, chunk.history)
        except Exception as error:
            # Whatever a damaged event raises: it is named, and the other rollouts are still compared.
            what = str(error) or type(error).__name__
            chunk.errors[number] = f"rollout number {number}, seq {seq}, position {position}: {what}"
            state = None
    if number:
        if state is not None:
            chunk.states.append(state)
        yield chunk


class _Totals:
    """Counts over all rollouts."""

    def __init__(self) -> None:
        self._head = Head(0, 0, 0)
        self._queues: dict[str, QueueCount] = {}
        self._statuses: Counter[str] = Counter()

    def add(self, chunk: _Chunk) -> None:
        head = self._head
        head.events += chunk.events
        head.number = chunk.last
        head.position = max(head.position, chunk.position)
        for state in chunk.states:
            self._statuses[state.status] += 1
            count = self._queues.get(state.queue)
            if count is None:
                count = self._queues[state.queue] = QueueCount()
            count.queued += state.claimable
            count.running += state.scheduler is not None

    def result(self) -> Replay:
        return Replay(self._head, self._queues, dict(self._statuses))


class _LiveRows:
    """A table's rows in the order of its key, whose first column is the rollout's number."""

    def __init__(self, snapshot: Snapshot, table: str) -> None:
        self.table = table
        self.columns = _COLUMNS[table]
        self.key_size = _KEYS[table]
        self._stream = snapshot.stream(table, self.columns, self.columns[: self.key_size])
        self._ahead: list[Row] = []

    def next(self, count: int) -> list[Row]:
        """The next rows, so many if there are."""
        found = self._ahead
        self._ahead = []
        if len(found) < count:
            found.extend(self._stream.fetch(count - len(found)))
        return found

    def until(self, number: int, found: list[Row]) -> list[Row]:
        """``found`` (the rows of `next`) cut or continued to the last row of a rollout number."""
        while (not found or found[-1][0] <= number) and (more := self._stream.fetch(CHUNK_EVENTS)):
            found.extend(more)
        end = len(found)
        while end and found[end - 1][0] > number:
            end -= 1
        self._ahead = found[end:]
        return found[:end]


class _Comparison:
    """Fresh rows against live ones, as a merge of streams."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.differences: list[Difference] = []
        self._snapshot = snapshot
        self._rollouts = _LiveRows(snapshot, "rollouts")
        self._history = [_LiveRows(snapshot, str(table.name)) for table in tables.HISTORY_TABLES]

    @property
    def full(self) -> bool:
        return len(self.differences) >= MAX_DIFFERENCES

    def chunk(self, chunk: _Chunk) -> None:
        """Compare the rows of some rollouts, and of numbers before theirs that have no events."""
        for error in chunk.errors.values():
            self._differ("events", error.partition(": ")[0], "*", "an event that folds", error)
        self._table(self._rollouts, [msgspec.structs.astuple(state) for state in chunk.states], chunk)
        for live in self._history:
            self._table(live, chunk.history.get(live.table, []), chunk)

    def leftovers(self) -> None:
        """Rows after the last rollout that has events."""
        for live in (self._rollouts, *self._history):
            while not self.full and (found := live.next(CHUNK_EVENTS)):
                self._rows(live, [], found)

    def totals(self, expected: Replay) -> None:
        """Compare the counters."""
        names = ("position", "number", "events")
        found = self._snapshot.rows(sql.SELECT_HEAD)
        for head in found:
            for name, want, have in zip(names, msgspec.structs.astuple(expected.head), head, strict=True):
                if want != have:
                    self._differ("ledger_head", "1", name, want, have)
        if not found:
            self._differ("ledger_head", "1", "*", PRESENT, ABSENT)
        live = {row[0]: QueueCount(row[1], row[2]) for row in self._snapshot.rows(sql.SELECT_COUNTS)}
        for queue in sorted(expected.queues.keys() | live.keys()):
            want, have = expected.queues.get(queue, QueueCount()), live.get(queue, QueueCount())
            for column in ("queued", "running"):
                if getattr(want, column) != getattr(have, column):
                    self._differ("queue_counts", queue, column, getattr(want, column), getattr(have, column))

    def _table(self, live: _LiveRows, expected: list[Row], chunk: _Chunk) -> None:
        found = live.next(len(expected))
        if found == expected and not chunk.errors:
            return
        found = live.until(chunk.last, found)
        # What the rows of a rollout should be whose events do not fold is not known.
        self._rows(
            live,
            [row for row in expected if row[0] not in chunk.errors],
            [row for row in found if row[0] not in chunk.errors],
        )

    def _rows(self, live: _LiveRows, expected: list[Row], found: list[Row]) -> None:
        size = live.key_size
        want = {row[:size]: row for row in expected}
        have = {row[:size]: row for row in found}
        for key in sorted(want.keys() | have.keys()):
            name = ", ".join(f"{column} {value}" for column, value in zip(live.columns, key, strict=False))
            if key not in have:
                self._differ(live.table, name, "*", PRESENT, ABSENT)
            elif key not in want:
                self._differ(live.table, name, "*", ABSENT, PRESENT)
            else:
                for column, wanted, value in zip(live.columns, want[key], have[key], strict=True):
                    if wanted != value:
                        self._differ(live.table, name, column, wanted, value)

    def _differ(self, table: str, key: str, column: str, expected: Any, found: Any) -> None:
        self.differences.append(Difference(table, key, column, expected, found))


def _shown(value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else value if value in (ABSENT, PRESENT) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
