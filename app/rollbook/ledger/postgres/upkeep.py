"""Changes beside the commands on PostgreSQL: a connection of its own, a transaction at a time.

What upkeep changes no command writes, so it takes no lock that a writer waits for; only upkeep waits for upkeep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import Row

from .blocking import BlockingConnection, blocking_connection

UPKEEP_LOCK = 7_310_579_042_018_375_703
"""The advisory lock that orders all upkeep of a database's ledger. Ours by its arbitrary value."""

BEGIN = (
    "BEGIN; SET LOCAL lock_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '30s';"
    f" SELECT pg_advisory_xact_lock({UPKEEP_LOCK})"
)


class PostgresTurn:
    """A transaction's statements."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return [tuple(row) for row in self._connection.rows(text, parameters)]

    def change(self, text: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.change(text, parameters)

    def change_all(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.change_all(text, rows)


class PostgresUpkeep:
    """One connection."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    @contextmanager
    def turn(self) -> Iterator[PostgresTurn]:
        self._connection.execute(BEGIN)
        try:
            yield PostgresTurn(self._connection)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        if (done := self._connection.execute("COMMIT")) != "COMMIT":
            raise LedgerUnavailable(f"the ledger was not changed: its database answered {done}; try again")


@contextmanager
def upkeep(url: sa.URL) -> Iterator[PostgresUpkeep]:
    """A connection for the block."""
    with blocking_connection(url, doing="written") as connection:
        yield PostgresUpkeep(connection)
