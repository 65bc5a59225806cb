"""What a check-up says of a PostgreSQL server: reach, release, durability, clock, pooler, wake-ups, rights, room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.ledger.clock import SharedClock, host_clock_us
from rollbook.ledger.diagnosis import Diagnosis, doubtful, ill, well
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import tables

from .connecting import REACH, Connection, connect, describe, is_outage
from .hints import CHANNEL
from .pooling import Pooling, find_pooling

OLDEST_SERVER = 15
LARGE_SKEW_US = 1_000_000
CLOCK_LOOKS = 3
HEARD_LIMIT_SEC = 5.0
PROCESS_CONNECTIONS = 7
"""What a process holds at most: one to write, four to read, one for wake-ups, and its supervisor's."""
LONG_TRANSACTION_MIN = 10

_UPDATED = frozenset({"ledger_head", "rollouts", "queue_counts", "members", "drains"})
_DELETED = frozenset({"secrets", "members", "member_queues"})

_SERVER = """
    SELECT current_setting('server_version_num')::int / 10000 AS release,
           current_setting('server_version') AS version,
           current_setting('server_encoding') AS encoding,
           current_setting('fsync') AS fsync,
           current_setting('full_page_writes') AS full_page_writes,
           current_setting('synchronous_commit') AS synchronous_commit,
           current_setting('autovacuum') AS autovacuum,
           pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool AS read_only,
           least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                     - coalesce(current_setting('reserved_connections', true)::int, 0),
                 nullif((SELECT datconnlimit FROM pg_database WHERE datname = current_database()), -1),
                 nullif((SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), -1)) AS most_connections,
           (SELECT count(*)::int FROM pg_stat_activity WHERE datid IS NOT NULL) AS connections,
           (SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database()
                AND xact_start < now() - make_interval(mins => $1)) AS long_transactions
"""
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_FORBIDDEN = """
    SELECT t.name, t.wanted FROM unnest($1::text[], $2::text[]) AS t(name, wanted)
    WHERE CASE WHEN to_regclass(t.name) IS NULL THEN false ELSE NOT has_table_privilege(t.name, t.wanted) END
    ORDER BY t.name, t.wanted
"""
_MEMBERS = """
    SELECT count(*)::int FROM members WHERE stopped_at IS NULL
        AND beat_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 15000000
"""


POOLED = doubtful(
    "pooler",
    "one with a session for each transaction is in between: all works, but wake-ups do not come through it, so each "
    "process asks the database 20 times a second",
    fix="for quicker wake-ups, connect to the database itself or use the pooler's session mode",
)


class Server(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    release: int
    version: str
    encoding: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    autovacuum: str
    read_only: bool
    most_connections: int
    connections: int
    long_transactions: int


async def check_server(url: sa.URL, *, place: str, clock: SharedClock) -> AsyncIterator[Diagnosis]:
    """The server as this host reaches it; ``clock`` hears its time. One that cannot be reached is told alone."""
    try:
        connection = await connect(url)
    except Exception as error:
        if not is_outage(error):
            raise
        yield ill(
            "database",
            f"{place} cannot be used: {describe(error)}",
            fix=REACH,
        )
        return
    try:
        pooling = await _pooling(url)  # first: all else needs one that keeps prepared statements
        server = Server(**dict(await connection.fetchrow(_SERVER, LONG_TRANSACTION_MIN)))
        for found in judge_server(server, place=place):
            yield found
        yield await _clock(connection, clock)
        if pooling is Pooling.NONE:
            yield well("pooler", "none in between, or one that keeps a session for each client")
            yield await _wake_ups(connection, url)
        else:
            yield POOLED
        async for found in _rights(connection):
            yield found
        yield await _room(connection, server)
    except LedgerUnavailable as error:
        says, _, fix = str(error).partition("; ")
        yield ill("database", says, fix=fix)
    except Exception as error:
        if not is_outage(error):
            raise
        yield ill("database", f"{place} failed meanwhile: {describe(error)}", fix="look into the server's log")
    finally:
        connection.terminate()


def judge_server(server: Server, *, place: str) -> Iterator[Diagnosis]:
    """What its release and settings mean for a ledger."""
    if server.release < OLDEST_SERVER:
        yield ill("database", f"{place} is PostgreSQL {server.version}", fix=f"use PostgreSQL {OLDEST_SERVER} or later")
        return
    yield well("database", f"{place}, PostgreSQL {server.version}")
    if server.encoding != "UTF8":
        yield ill(
            "encoding",
            f"the database keeps texts as {server.encoding}, which cannot hold every rollout",
            fix="make another database with ENCODING 'UTF8'",
        )
    if server.read_only:
        yield ill(
            "writing",
            "it is a standby, or set to read only",
            fix="connect to the primary, or unset default_transaction_read_only",
        )
    lossy = [
        name
        for name, value in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes))
        if value != "on"
    ]
    if server.synchronous_commit == "off":
        lossy.append("synchronous_commit")
    if lossy:
        yield ill(
            "durability",
            f"{', '.join(lossy)} is off: a crash of the server or its machine can lose what was acknowledged",
            fix=f"set {', '.join(f'{name} = on' for name in lossy)}",
        )
    else:
        yield well("durability", f"what is committed is on disk (synchronous_commit = {server.synchronous_commit})")
    if server.autovacuum != "on":
        yield doubtful("autovacuum", "it is off; the ledger's tables grow without end", fix="set autovacuum = on")
    if server.long_transactions:
        yield doubtful(
            "transactions",
            f"{server.long_transactions} are older than {LONG_TRANSACTION_MIN} minutes; old rows stay for them",
            fix="find them in pg_stat_activity (xact_start) and end them",
        )


async def _clock(connection: Connection, clock: SharedClock) -> Diagnosis:
    quickest: tuple[int, int] | None = None
    for _ in range(CLOCK_LOOKS):
        asked_at = host_clock_us()
        theirs: int = await connection.fetchval(_NOW)
        took = host_clock_us() - asked_at
        clock.heard(theirs)
        if quickest is None or took < quickest[0]:
            quickest = took, theirs - asked_at - took // 2
    assert quickest is not None
    return judge_skew(quickest[1])


def judge_skew(skew_us: int) -> Diagnosis:
    """What it means that the database's clock is so far ahead of this host's."""
    if abs(skew_us) < LARGE_SKEW_US:
        return well("clock", f"this host's is within {max(abs(skew_us) / 1_000, 1):.0f} ms of the database's")
    return doubtful(
        "clock",
        f"this host's is {abs(skew_us) / 1_000_000:.1f} s {'behind' if skew_us > 0 else 'ahead of'} the database's; "
        "Rollbook goes by the database's, but logs and what workflows write do not",
        fix="set it right, and let it be kept right (NTP)",
    )


async def _pooling(url: sa.URL) -> Pooling:
    """What stands between this host and the server.

    Raises:
        LedgerUnavailable: a pooler that Rollbook cannot work through; the message says what to change.
    """
    connection = await connect(url)
    try:
        return await find_pooling(connection, url)
    finally:
        connection.terminate()


async def _wake_ups(connection: Connection, url: sa.URL) -> Diagnosis:
    """Sent on one session and heard on another, as between processes."""
    heard = asyncio.Event()
    sender = await connect(url)
    try:
        sender_pid = sender.get_server_pid()

        def hear(_connection: object, pid: int, _channel: str, _payload: str) -> None:
            if pid == sender_pid:
                heard.set()

        await connection.add_listener(CHANNEL, hear)
        await sender.execute(f"NOTIFY {CHANNEL}")
        async with asyncio.timeout(HEARD_LIMIT_SEC):
            await heard.wait()
    except TimeoutError:
        return doubtful(
            "wake-ups",
            f"a notification did not arrive within {HEARD_LIMIT_SEC:g} s; processes wake each other late",
            fix="look for a proxy or pooler that swallows NOTIFY, and connect to the database itself",
        )
    finally:
        sender.terminate()
    return well("wake-ups", "notifications arrive")


async def _rights(connection: Connection) -> AsyncIterator[Diagnosis]:
    names = list(tables.metadata.tables)
    wanted = [
        *((name, right) for name in names for right in ("SELECT", "INSERT")),
        *((name, "UPDATE") for name in _UPDATED),
        *((name, "DELETE") for name in _DELETED),
    ]
    rows = await connection.fetch(_FORBIDDEN, [name for name, _ in wanted], [right for _, right in wanted])
    if rows:
        user: str = await connection.fetchval("SELECT current_user")
        grants = "; ".join(f'GRANT {right} ON {name} TO "{user}"' for name, right in map(tuple, rows))
        yield ill("rights", f"{user} may not do all that a process does", fix=f"as their owner: {grants}")


async def _room(connection: Connection, server: Server) -> Diagnosis:
    registered: Any = await connection.fetchval("SELECT to_regclass('members')")
    members: int = 0 if registered is None else await connection.fetchval(_MEMBERS)
    return judge_room(server, members=members)


def judge_room(server: Server, *, members: int) -> Diagnosis:
    """Whether the members' connections, and one more process's, have room."""
    needed = PROCESS_CONNECTIONS * (members + 1)
    says = (
        f"{server.connections} of {server.most_connections} are in use; {members} processes of Rollbook and one more "
        f"may hold {needed}"
    )
    if needed > server.most_connections:
        return ill("connections", says, fix="raise max_connections (or the database's or the role's own limit)")
    if server.connections + PROCESS_CONNECTIONS > server.most_connections:
        return doubtful("connections", says, fix="raise max_connections, or end sessions that nobody needs")
    return well("connections", says)
