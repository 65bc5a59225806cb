"""The ledger's SQL for SQLite, built once from the declared tables.

Rows go in by multi-row `VALUES` of a few fixed sizes: one statement keeps the interpreter's lock released for the
whole insert, where `executemany` takes it back for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import fields

from rollbook_projections import RolloutState, tables

SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
STATE_COLUMNS = tuple(field.name for field in fields(RolloutState))
_FIXED_COLUMNS = {
    "number",
    "rollout_id",
    "queue",
    "max_attempts",
    "lease_digest",
    "lease_timeout_us",
    "admitted_at",
    "agent_timeout_us",
    "request_position",
}
SELECT_STATE = f"SELECT {', '.join(STATE_COLUMNS)} FROM rollouts"


def values(width: int, rows: int) -> str:
    """`(?, ?), (?, ?)` for so many rows."""
    row = f"({', '.join('?' * width)})"
    return ", ".join([row] * rows)


class RowInsert:
    """An insert of any number of rows into one table."""

    def __init__(self, table: str, columns: Sequence[str], suffix: str = "") -> None:
        head = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
        self._texts = {size: f"{head}{values(len(columns), size)}{suffix}" for size in SIZES}

    def chunks(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
        """Statements with their parameters."""
        start = 0
        left = len(rows)
        for size in SIZES:
            while left >= size:
                part = rows[start : start + size]
                yield self._texts[size], [value for row in part for value in row]
                start += size
                left -= size


def _table_insert(table: sa.Table) -> RowInsert:
    return RowInsert(table.name, [column.name for column in table.columns])


def _assignments(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


INSERT_EVENTS = _table_insert(tables.events)
INSERT_SECRETS = _table_insert(tables.secrets)
INSERT_HISTORY = {table.name: _table_insert(table) for table in tables.HISTORY_TABLES}
UPSERT_ROLLOUTS = RowInsert(
    "rollouts",
    STATE_COLUMNS,
    f" ON CONFLICT (number) DO UPDATE SET {_assignments(c for c in STATE_COLUMNS if c not in _FIXED_COLUMNS)}",
)
UPSERT_COUNTS = RowInsert(
    "queue_counts",
    ("queue", "queued", "running"),
    f" ON CONFLICT (queue) DO UPDATE SET {_assignments(('queued', 'running'))}",
)

SELECT_HEAD = "SELECT position, number, events FROM ledger_head WHERE id = 1"
UPDATE_HEAD = "UPDATE ledger_head SET position = ?, number = ?, events = ? WHERE id = 1"
SELECT_COUNTS = "SELECT queue, queued, running FROM queue_counts"
SELECT_API_SEEN = "SELECT coalesce(max(beat_at), 0) FROM members WHERE kind = 'api'"
SELECT_EVENT_HASH = "SELECT hash FROM events WHERE position = ?"


def _by_index(index: sa.Index, condition: str) -> str:
    # The planner knows no counts: left alone, it walks through all rollouts there ever were to spare itself a sort.
    return f"{SELECT_STATE} INDEXED BY {index.name} WHERE {condition}"


SELECT_LIVE = _by_index(tables.LIVE_INDEX, tables.LIVE)
SELECT_EXPIRED = f"{SELECT_LIVE} AND lease_expires_at <= ? AND lease_expires_at <= ? ORDER BY number LIMIT ?"
SELECT_LATE = (
    f"{SELECT_STATE} WHERE {tables.CLAIMABLE} AND agent_deadline_at IS NOT NULL AND agent_deadline_at <= ?"
    " ORDER BY agent_deadline_at LIMIT ?"
)
SELECT_ORPHANED = (
    f"{_by_index(tables.OWNED_INDEX, tables.OWNED)} AND NOT EXISTS (SELECT 1 FROM members m"
    " WHERE m.member_id = rollouts.scheduler AND m.stopped_at IS NULL) ORDER BY scheduler, number LIMIT ?"
)
_FINISHED_SINCE = f"{_by_index(tables.FINISHED_INDEX, tables.FINISHED)} AND finished_at >= ?"


def select_by_ids(count: int) -> tuple[str, int]:
    """The statement that reads states by id, and how many parameters it takes (pad with nulls)."""
    size = next((size for size in reversed(SIZES) if size >= count), SIZES[0])
    return _SELECT_BY_IDS[size], size


_SELECT_BY_IDS = {size: f"{SELECT_STATE} WHERE rollout_id IN ({', '.join('?' * size)})" for size in SIZES}


def select_claimable(queues: int) -> str:
    """The oldest waiting rollouts of so many queues after a number; the last parameter is the limit."""
    marks = ", ".join("?" * queues)
    return f"{SELECT_STATE} WHERE {tables.CLAIMABLE} AND queue IN ({marks}) AND number > ? ORDER BY number LIMIT ?"


def select_cancellable(prefix: str | None) -> tuple[str, tuple[str, ...]]:
    """All live rollouts, or those whose id starts with ``prefix``, and those that ended since the last parameter.

    The statement's parameters are the returned ones, the time, and the returned ones again.
    """
    condition, bounds = prefix_range(prefix)
    live = f"{SELECT_LIVE}{condition}"
    return f"{live} UNION ALL {_FINISHED_SINCE}{condition}", bounds


def prefix_range(prefix: str | None) -> tuple[str, tuple[str, ...]]:
    """`rollout_id` between a prefix and its bytewise successor: a range uses the index, and LIKE folds case."""
    if not prefix:
        return "", ()
    end = successor(prefix)
    if end is None:
        return " AND rollout_id >= ?", (prefix,)
    return " AND rollout_id >= ? AND rollout_id < ?", (prefix, end)


def successor(prefix: str) -> str | None:
    """The first text, in the order of UTF-8 bytes, after all that start with ``prefix``; None if there is none."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code == 0xD800:
            code = 0xE000
        if code <= 0x10FFFF:
            return prefix[:-1] + chr(code)
        prefix = prefix[:-1]
    return None
