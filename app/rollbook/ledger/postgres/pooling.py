"""Whether a pooler stands between us and the database, and whether Rollbook can work through it.

A transaction-mode pooler gives every transaction another session. Notifications do not arrive through it, so the feed
polls; statements that were prepared must be known to the pooler (PgBouncer 1.21 and later, `max_prepared_statements`).
All else that needs a session stays within one transaction here.

Nothing here is prepared under the driver's own names, and each question is a transaction: so it is answered by any
pooler, and a name that another process has given to the same session does no harm.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable

from .connecting import FORGETFUL_POOLER, Connection, connect

TRIES = 3
TURN_LIMIT_SEC = 2.0
"""A pooler with one session lets the second client wait for as long as the first one keeps it."""


class Pooling(Enum):
    """What stands in between."""

    NONE = "none, or one session for each client"
    TRANSACTION = "one session for each transaction"


async def find_pooling(first: Connection, url: sa.URL) -> Pooling:
    """Try it out with two clients at once; ``first`` is of no use afterwards.

    Raises:
        LedgerUnavailable: there is a pooler that does not keep prepared statements; the message says what to change.
    """
    second = await connect(url)
    try:
        if not await _sessions_change(first, second):
            return Pooling.NONE
        if await _names_reach_the_server(second):
            raise LedgerUnavailable(f"the ledger cannot be opened: {FORGETFUL_POOLER}")
        return Pooling.TRANSACTION
    finally:
        second.terminate()


async def _sessions_change(first: Connection, second: Connection) -> bool:
    """Whether one client's session is another one in its next transaction, or has been the other client's.

    Most poolers lend the session that was given back last: taken by the second client, it is not there for the first.
    """
    seen = {await _session(first)}
    for _ in range(TRIES):
        async with second.transaction():
            held = await _ask(second, "SELECT pg_backend_pid()")
            try:
                async with asyncio.timeout(TURN_LIMIT_SEC):
                    seen.add(await _session(first))
            except TimeoutError:
                first.terminate()  # or it would take the session as soon as the second one gives it back
                # A slow server is no pooler: that one answers with a session that was begun for somebody else.
                return bool(held != second.get_server_pid())
        if len(seen) > 1 or held in seen:
            return True
    return False


async def _names_reach_the_server(connection: Connection) -> bool:
    """Whether a statement is known to the server by the client's own name: then nobody prepares it in other sessions.

    A pooler that keeps statements gives them names of its own, since those of two clients may be the same.
    """
    name = f"rollbook_{uuid4().hex}"
    async with connection.transaction():
        kept = await connection.prepare("SELECT 1", name=name)  # closed as soon as nobody holds it
        count = await _ask(connection, "SELECT count(*) FROM pg_prepared_statements WHERE name = $1", kept.get_name())
        return bool(count)


async def _session(connection: Connection) -> int:
    async with connection.transaction():
        session: int = await _ask(connection, "SELECT pg_backend_pid()")
        return session


async def _ask(connection: Connection, text: str, *parameters: Any) -> Any:
    """One value, within a transaction, by a statement without a name."""
    return await (await connection.prepare(text, name="")).fetchval(*parameters)
