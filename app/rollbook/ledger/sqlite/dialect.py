"""How SQLite says what databases say differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.statements import SELECT_STATE, Query, Statements
from rollbook_projections import tables

SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Statements come in a few sizes, so that each is parsed once."""


class SqliteDialect:
    """SQLite's words."""

    def by_index(self, index: sa.Index) -> str:
        """The planner knows no counts: left alone, it walks through all rollouts there ever were to spare a sort."""
        return f" INDEXED BY {index.name}"

    def is_any(self, column: str, values: Sequence[Any]) -> Query:
        """`IN` with as many marks as the next larger size; what is left over is null and matches nothing."""
        size = next((size for size in reversed(SIZES) if size >= len(values)), SIZES[0])
        return f"{column} IN ({_MARKS[size]})", (*values, *[None] * (size - len(values)))

    def oldest_waiting(self, queues: Sequence[str], *, after: int, limit: int) -> Query:
        condition, parameters = self.is_any("queue", queues)
        text = f"{SELECT_STATE} WHERE {tables.CLAIMABLE} AND {condition} AND number > ? ORDER BY number LIMIT ?"
        return text, (*parameters, after, limit)

    def compared(self, column: str) -> str:
        """`INDEXED BY` has the say."""
        return column


_MARKS = {size: ", ".join("?" * size) for size in SIZES}

STATEMENTS = Statements(SqliteDialect())
