"""How SQLite says what databases say differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.statements import Query, Statements

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


_MARKS = {size: ", ".join("?" * size) for size in SIZES}

STATEMENTS = Statements(SqliteDialect())
