"""How PostgreSQL says what databases say differently."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.statements import Query, Statements


class PostgresDialect:
    """PostgreSQL's words."""

    def by_index(self, index: sa.Index) -> str:
        """The planner knows how few rows a partial index holds."""
        return ""

    def is_any(self, column: str, values: Sequence[Any]) -> Query:
        """One statement for any number of values."""
        return f"{column} = ANY(?)", (list(values),)


STATEMENTS = Statements(PostgresDialect())


@lru_cache(maxsize=1024)
def numbered(text: str) -> str:
    """A statement's parameter marks as PostgreSQL wants them: `$1`, `$2`. No statement of ours holds a `?` else."""
    first, *rest = text.split("?")
    numbers = count(1)
    return first + "".join(f"${next(numbers)}{part}" for part in rest)
