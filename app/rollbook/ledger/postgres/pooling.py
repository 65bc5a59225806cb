"""Whether a pooler stands between us and the database, and whether Rollbook can work through it.

A transaction-mode pooler gives every transaction another session. Notifications do not arrive through it, so the feed
polls; statements that were prepared must be known to the pooler (PgBouncer 1.21 and later, `max_prepared_statements`).
All else that needs a session stays within one transaction here.
"""

from __future__ import annotations

from enum import Enum

import asyncpg
import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable

from .connecting import Connection, connect

_BACKEND = "SELECT pg_backend_pid()"


class Pooling(Enum):
    """What stands in between."""

    NONE = "none, or one session for each client"
    TRANSACTION = "one session for each transaction"


async def find_pooling(first: Connection, url: sa.URL) -> Pooling:
    """Try it out with two clients at once.

    Two clients that are served by one session are served by a pooler, and so is a client whose session changes while
    another one holds its last one in a transaction.

    Raises:
        LedgerUnavailable: there is a pooler that does not keep prepared statements; the message says what to change.
    """
    before = await first.fetchval(_BACKEND)
    second = await connect(url)
    try:
        async with second.transaction():
            held = await second.fetchval(_BACKEND)
            try:
                after = await first.fetchval(_BACKEND)
            except asyncpg.PostgresError as error:
                if error.sqlstate in ("26000", "42P05", "08P01"):
                    raise _refused() from error
                raise
        pooled = held == before or after != before
        return Pooling.TRANSACTION if pooled else Pooling.NONE
    except asyncpg.DuplicatePreparedStatementError as error:
        raise _refused() from error
    finally:
        second.terminate()


def _refused() -> LedgerUnavailable:
    return LedgerUnavailable(
        "the pooler in front of the database forgets prepared statements between transactions; set "
        "max_prepared_statements in PgBouncer (1.21 or later), use its session mode, or connect to the database itself"
    )
