"""What a transaction writes, as SQL for SQLite built once from the declared tables.

Rows go in by multi-row `VALUES` of a few fixed sizes: one statement keeps the interpreter's lock released for the
whole insert, where `executemany` takes it back for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.statements import FIXED_COLUMNS, STATE_COLUMNS
from rollbook_projections import tables

from .dialect import SIZES


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
    f" ON CONFLICT (number) DO UPDATE SET {_assignments(c for c in STATE_COLUMNS if c not in FIXED_COLUMNS)}",
)
UPSERT_COUNTS = RowInsert(
    "queue_counts",
    ("queue", "queued", "running"),
    f" ON CONFLICT (queue) DO UPDATE SET {_assignments(('queued', 'running'))}",
)
UPDATE_HEAD = "UPDATE ledger_head SET position = ?, number = ?, events = ? WHERE id = 1"
