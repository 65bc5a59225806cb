"""The ledger's reads in SQL, written once for all databases; parameters are marked `?`.

A `Dialect` says the little that differs: how a row is found by any of several values, and by which index.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from msgspec.structs import fields

from rollbook_projections import RolloutState, Row, tables

Query = tuple[str, Sequence[Any]]
type Steps[Result] = Generator[Query, list[Row], Result]
"""Work that reads as it goes: it yields queries, is sent their rows, and returns its result. Whoever holds the
connection drives it, so the same rules run on any driver, waiting or not."""

STATE_COLUMNS = tuple(field.name for field in fields(RolloutState))
FIXED_COLUMNS = frozenset(
    {
        "number",
        "rollout_id",
        "queue",
        "max_attempts",
        "lease_digest",
        "lease_timeout_us",
        "admitted_at",
        "agent_timeout_us",
        "request_position",
        "idempotency_key",
    }
)
"""What never changes once a rollout is admitted."""

LARGEST_CHOICE = 256
"""How many values one statement looks for at most."""

SELECT_STATE = f"SELECT {', '.join(STATE_COLUMNS)} FROM rollouts"
SELECT_HEAD = "SELECT position, number, events FROM ledger_head WHERE id = 1"
SELECT_COUNTS = "SELECT queue, queued, running FROM queue_counts"
SELECT_API_SEEN = "SELECT coalesce(max(beat_at), 0) FROM members WHERE kind = 'api'"
SELECT_EVENT_HASH = "SELECT hash FROM events WHERE position = ?"
SELECT_SCORINGS = "SELECT coalesce(max(scoring), 0) FROM scorings WHERE number = ?"
SELECT_LATE = (
    f"{SELECT_STATE} WHERE {tables.CLAIMABLE} AND agent_deadline_at IS NOT NULL AND agent_deadline_at <= ?"
    " ORDER BY agent_deadline_at LIMIT ?"
)


class Dialect(Protocol):
    """What one database says in its own way."""

    def by_index(self, index: sa.Index) -> str:
        """What follows a table's name so that its rows are found by this index; empty where the planner knows."""

    def is_any(self, column: str, values: Sequence[Any]) -> Query:
        """A condition that holds where the column is one of the values (`LARGEST_CHOICE` at most)."""

    def oldest_waiting(self, queues: Sequence[str], *, after: int, limit: int) -> Query:
        """What reads the states of the oldest waiting rollouts of these queues after a number, by their index."""

    def compared(self, column: str) -> str:
        """A column in a condition by which no rows are looked up, so that another one's index finds them."""


class Statements:
    """The statements that differ between databases, for one of them."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.select_live = self._by_index(tables.LIVE_INDEX, tables.LIVE)
        self.select_expired = (
            f"{self.select_live} AND lease_expires_at <= ? AND lease_expires_at <= ? ORDER BY number LIMIT ?"
        )
        self.select_orphaned = (
            f"{self._by_index(tables.OWNED_INDEX, tables.OWNED)} AND NOT EXISTS (SELECT 1 FROM members m"
            " WHERE m.member_id = rollouts.scheduler AND m.stopped_at IS NULL) ORDER BY scheduler, number LIMIT ?"
        )
        self._finished_since = f"{self._by_index(tables.FINISHED_INDEX, tables.FINISHED)} AND finished_at >= ?"

    def _by_index(self, index: sa.Index, condition: str) -> str:
        return f"{SELECT_STATE}{self.dialect.by_index(index)} WHERE {condition}"

    def states(self, column: str, values: Sequence[Any]) -> Iterator[Query]:
        """What reads the states whose column is any of the values."""
        for condition, parameters in self.any_of(column, values):
            yield f"{SELECT_STATE} WHERE {condition}", parameters

    def any_of(self, column: str, values: Sequence[Any]) -> Iterator[Query]:
        """Conditions that hold, between them, where the column is any of the values."""
        for start in range(0, len(values), LARGEST_CHOICE):
            yield self.dialect.is_any(column, values[start : start + LARGEST_CHOICE])

    def claimable(self, queues: Sequence[str], *, after: int, limit: int) -> Query:
        """The oldest waiting rollouts of these queues after a number."""
        return self.dialect.oldest_waiting(queues, after=after, limit=limit)

    def open_attempts(self, schedulers: Sequence[str]) -> Query:
        """How many attempts each of these schedulers has open; those without any are left out."""
        condition, parameters = self.dialect.is_any("scheduler", schedulers)
        source = f"rollouts{self.dialect.by_index(tables.OWNED_INDEX)}"
        return (
            f"SELECT scheduler, count(*) FROM {source} WHERE {tables.OWNED} AND {condition} GROUP BY scheduler",
            parameters,
        )

    def lost_owners(self, stale: int) -> Query:
        """Schedulers with open attempts that stopped or were last seen until then; their host is null if unknown."""
        return (
            f"SELECT DISTINCT scheduler, m.host FROM rollouts{self.dialect.by_index(tables.OWNED_INDEX)}"
            " LEFT JOIN members m ON m.member_id = rollouts.scheduler"
            f" WHERE {tables.OWNED} AND (m.member_id IS NULL OR m.stopped_at IS NOT NULL OR m.beat_at <= ?)"
            " ORDER BY scheduler",
            (stale,),
        )

    def cancellable(self, prefix: str | None, since: int) -> Query:
        """All live rollouts, or those whose id starts with ``prefix``, and those that ended since then."""
        # Old rollouts may share the prefix by the million, so the ids' own index would be the wrong one.
        condition, bounds = prefix_range(prefix, column=self.dialect.compared("rollout_id"))
        text = f"{self.select_live}{condition} UNION ALL {self._finished_since}{condition}"
        return text, (*bounds, since, *bounds)


def prefix_range(prefix: str | None, *, column: str = "rollout_id") -> tuple[str, tuple[str, ...]]:
    """A column between a prefix and its bytewise successor: a range uses the index, and LIKE folds case."""
    if not prefix:
        return "", ()
    end = successor(prefix)
    if end is None:
        return f" AND {column} >= ?", (prefix,)
    return f" AND {column} >= ? AND {column} < ?", (prefix, end)


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


def storable(text: str) -> bool:
    """Whether a database can be asked for it: texts with a lone surrogate or a NUL exist nowhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
