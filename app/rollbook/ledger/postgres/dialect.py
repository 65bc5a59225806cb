"""How PostgreSQL says what databases say differently."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.statements import STATE_COLUMNS, Query, Statements
from rollbook_projections import tables


class PostgresDialect:
    """PostgreSQL's words."""

    def by_index(self, index: sa.Index) -> str:
        """The planner knows how few rows a partial index holds."""
        return ""

    def is_any(self, column: str, values: Sequence[Any]) -> Query:
        """One statement for any number of values."""
        return f"{column} = ANY(?)", (list(values),)

    def oldest_waiting(self, queues: Sequence[str], *, after: int, limit: int) -> Query:
        """Each queue's in the index's own order: asked for the order over several queues, the planner may walk through
        all rollouts there ever were to spare a sort."""
        return _OLDEST_WAITING, (list(dict.fromkeys(queues)), after, limit, limit)

    def compared(self, column: str) -> str:
        """An expression has no index."""
        return f"({column} || '')"


_OLDEST_WAITING = f"""
    SELECT {", ".join(f"w.{name}" for name in STATE_COLUMNS)}
    FROM unnest(?::text[]) AS q (name)
    CROSS JOIN LATERAL (
        SELECT * FROM rollouts WHERE {tables.CLAIMABLE} AND queue = q.name AND number > ? ORDER BY number LIMIT ?
    ) w
    ORDER BY w.number LIMIT ?
"""


STATEMENTS = Statements(PostgresDialect())


@lru_cache(maxsize=1024)
def numbered(text: str) -> str:
    """A statement's parameter marks as PostgreSQL wants them: `$1`, `$2`. No statement of ours holds a `?` else."""
    first, *rest = text.split("?")
    numbers = count(1)
    return first + "".join(f"${next(numbers)}{part}" for part in rest)
