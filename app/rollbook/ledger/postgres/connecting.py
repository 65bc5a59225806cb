"""Connections to PostgreSQL: how they are opened, and what their errors mean."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable

CONNECT_LIMIT_SEC = 5.0
COMMAND_LIMIT_SEC = 60.0
"""A server that vanished without a word is noticed by then; what others wait for has shorter limits of its own."""
FIRST_PAUSE_SEC = 0.02
LONGEST_PAUSE_SEC = 0.5
CACHED_STATEMENTS = 1024
APPLICATION = "rollbook"

PLANNING = (
    "plan_cache_mode = force_generic_plan",
    "enable_seqscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
)
"""Settings for statements that find few rows by an index. Each is planned once, and perhaps while its tables are still
empty: without these the plan would read whole tables, until statistics are gathered for the first time."""

FORGETFUL_POOLER = (
    "the pooler in front of the database forgets prepared statements between transactions; set "
    "max_prepared_statements in PgBouncer (1.21 or later), use its session mode, or connect to the database itself"
)
REACH = "start it, or correct the URL with its host, user, password and database"
"""What to do where no connection can be opened."""
_FORGOTTEN = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""A statement that we prepared is not there, or somebody else's is in its place."""

LONG_WAITED = (TimeoutError, asyncpg.LockNotAvailableError)
"""Errors of a database that was asked for long enough. Any other may be told of a connection that broke long ago."""

Connection = Any
"""An `asyncpg.Connection`; the driver brings no types."""

OUTAGES = (OSError, EOFError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver raises, the network's errors and the server's own among them. The last one is what it makes of a
server that ends a session by itself."""

_DATA = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError, ValueError)
"""What is wrong with one command's data; trying again changes nothing. The driver's own refusals are ValueErrors."""


async def connect(url: sa.URL, *, command_limit_sec: float | None = None, settings: Sequence[str] = ()) -> Connection:
    """A new connection, with ``settings`` of its session as `SET` takes them.

    Each of its commands ends within ``command_limit_sec``, or within `COMMAND_LIMIT_SEC`.

    Raises:
        OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError: all of them outages to `is_outage`.
    """
    try:
        return await _connect(url, command_limit_sec=command_limit_sec, settings=settings)
    except Exception as error:
        if is_outage(error):
            raise
        # Files of keys and passwords, the environment, a server's settings: no command's data, and it may be mended.
        raise ConnectionError(f"no connection can be opened: {error}") from error


async def _connect(url: sa.URL, *, command_limit_sec: float | None, settings: Sequence[str]) -> Connection:
    connection = await asyncpg.connect(
        url.render_as_string(hide_password=False),
        timeout=CONNECT_LIMIT_SEC,
        command_timeout=COMMAND_LIMIT_SEC if command_limit_sec is None else command_limit_sec,
        statement_cache_size=CACHED_STATEMENTS,
        max_cached_statement_lifetime=0,
        server_settings={"application_name": APPLICATION},
    )
    if settings:
        # Not among the parameters of its start, which poolers refuse.
        try:
            await connection.execute("; ".join(f"SET {setting}" for setting in settings))
        except BaseException:
            connection.terminate()
            raise
    return connection


def is_outage(error: BaseException) -> bool:
    """Whether the database cannot do now what it may do later: gone, starting, full, read-only, busy."""
    if isinstance(error, _DATA):
        return False
    return isinstance(error, OUTAGES)


def pauses() -> Iterator[float]:
    """How many seconds to wait before each try: ever longer, and not as long as the others whose connection broke."""
    pause = FIRST_PAUSE_SEC
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(pause * 2, LONGEST_PAUSE_SEC)


def unavailable(error: BaseException, *, doing: str) -> LedgerUnavailable:
    """The error that callers see; ``doing`` is `read` or `written`."""
    return LedgerUnavailable(
        f"the ledger cannot be {doing} now: {describe(error)}", fix="see what `rollbook doctor` says of its database"
    )


def unusable(error: BaseException, url: sa.URL) -> LedgerUnavailable:
    """The error of callers who have reached nothing yet, and so perhaps named the wrong place."""
    if isinstance(error, _FORGOTTEN):
        return unavailable(error, doing="opened")
    return LedgerUnavailable(f"{place(url)} cannot be used: {describe(error)}; {REACH}")


def place(url: sa.URL) -> str:
    """A database as an operator knows it, without user and password."""
    found = url.host or url.query.get("host") or "localhost"
    host = found if isinstance(found, str) else ",".join(found)
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{host}{port}/{url.database}"


def describe(error: BaseException) -> str:
    """An error in words, without a password: the driver names addresses and users, never those."""
    if isinstance(error, TimeoutError) and not str(error):
        return "the database does not answer"
    if isinstance(error, _FORGOTTEN):
        return FORGETFUL_POOLER
    return str(error) or type(error).__name__
