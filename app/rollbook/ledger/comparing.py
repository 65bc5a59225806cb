"""Rows as they stand, compared with those that the fold makes: a merge of streams, some thousand rows in memory."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook_projections import Row, tables

from . import statements as sql
from .archives.stubs import Stub
from .database import Snapshot
from .folding import CHUNK_EVENTS, Chunk, Replay
from .transaction import QueueCount

MAX_DIFFERENCES = 20
ABSENT = "no row"
PRESENT = "a row"
SHOWN_CHARACTERS = 200

# Plain texts: SQLAlchemy's own kind of them has no JSON form.
_KEYS = {str(table.name): len(table.primary_key.columns) for table in tables.HISTORY_TABLES}
_COLUMNS = {str(table.name): [str(column.name) for column in table.columns] for table in tables.HISTORY_TABLES}
_KEYS["rollouts"] = 1
_COLUMNS["rollouts"] = list(sql.STATE_COLUMNS)


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


class Comparison:
    """Fresh rows against live ones, as a merge of streams."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.differences: list[Difference] = []
        self._snapshot = snapshot
        self._rollouts = _LiveRows(snapshot, "rollouts")
        self._history = [_LiveRows(snapshot, str(table.name)) for table in tables.HISTORY_TABLES]

    @property
    def full(self) -> bool:
        return len(self.differences) >= MAX_DIFFERENCES

    def chunk(self, chunk: Chunk) -> None:
        """Compare the rows of some rollouts, and of numbers before theirs that have no events."""
        for error in chunk.errors.values():
            self._differ("events", error.partition(": ")[0], "*", "an event that folds", error)
        self._table(self._rollouts, [msgspec.structs.astuple(state) for state in chunk.states], chunk)
        # What stands in the history tables for archived events is not known here: only their rows can be held to it.
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

    def _table(self, live: _LiveRows, expected: list[Row], chunk: Chunk) -> None:
        found = live.next(len(expected))
        if found == expected and not chunk.errors and not chunk.stubs:
            return
        found = live.until(chunk.last, found)
        if chunk.stubs:
            if live is self._rollouts:
                self._archived({row[0]: row for row in found if row[0] in chunk.stubs}, chunk.stubs)
            found = [row for row in found if row[0] not in chunk.stubs]
        # What the rows of a rollout should be whose events do not fold is not known.
        self._rows(
            live,
            [row for row in expected if row[0] not in chunk.errors],
            [row for row in found if row[0] not in chunk.errors],
        )

    def _archived(self, found: dict[int, Row], stubs: dict[int, Stub]) -> None:
        """Hold rows of archived rollouts to what stands for their events."""
        for number, stub in stubs.items():
            key = f"number {number}"
            if number not in found:
                self._differ("rollouts", key, "*", PRESENT, ABSENT)
                continue
            row = dict(zip(self._rollouts.columns, found[number], strict=True))
            wanted = {"seq": stub.seq, "head": stub.head, "scheduler": None, "request_position": stub.first_position}
            for column, value in wanted.items():
                if row[column] != value:
                    self._differ("rollouts", key, column, value, row[column])
            result = row["result_position"]
            if not (isinstance(result, int) and stub.first_position < result <= stub.last_position):
                self._differ("rollouts", key, "result_position", f"up to {stub.last_position}", result)

    def _rows(self, live: _LiveRows, expected: list[Row], found: list[Row]) -> None:
        if expected == found:
            return
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
