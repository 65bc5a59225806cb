"""The PostgreSQL side of a batch: begin and take the lock, read, run the commands, write, commit.

One connection, held. The advisory lock is taken before anything is read, in a statement of its own: what is read
after it is what the last holder committed, so writers of all processes follow one another and none ever conflicts.
Positions are given under the lock, so commit order is their order. The batch is taken under it too: it has all that
was submitted while others held the lock.

Everything that the transaction needs of its session is set within it, so that a pooler may hand every transaction to
another session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec
import sqlalchemy as sa

from rollbook.ledger.batch import Batch, Committed, named_ids, named_keys, tries
from rollbook.ledger.clock import SharedClock, monotonic_us
from rollbook.ledger.commands import Command
from rollbook.ledger.database import Landed, Take
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.statements import SELECT_API_SEEN, STATE_COLUMNS, Steps
from rollbook.ledger.transaction import Head, QueueCount, Transaction
from rollbook_projections import RolloutState, Row, tables

from .connecting import (
    LONG_WAITED,
    OUTAGES,
    PLANNING,
    Connection,
    connect,
    describe,
    is_outage,
    pauses,
    unavailable,
)
from .dialect import STATEMENTS, numbered
from .writes import NEWEST_HEAD, write_of

log = logging.getLogger(__name__)

WRITE_LOCK = 7_310_579_042_018_375_701
"""The advisory lock that orders all writers of a database's ledger. Ours by its arbitrary value."""
LOCK_LIMIT_SEC = 10
STALLED_WRITER_SEC = 5
"""A writer that says nothing for so long within its transaction (stopped, or cut off) is ended by the server: others
wait for its lock. Less than they wait at most."""
WRITE_LIMIT_SEC = 15.0
"""What a server that does not answer is given for each statement; more than the lock may take."""
SLOWEST_LINK_BYTES_PER_SEC = 4 * 1024 * 1024
"""Both limits are longer by the time that a batch's payloads take at this speed. A full batch that stalls is still
ended before others have waited in vain."""
LARGEST_BATCH_BYTES = 1_000_000_000
"""The server takes no longer message, and ends the session without a word."""
RETRY_SEC = 5.0
SILENCE = "this API could not renew leases for a while"

BEGIN = (
    # Whatever the database's default is: stricter ones would show what was there before the lock was.
    f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{LOCK_LIMIT_SEC}s';"
    f" SET LOCAL idle_in_transaction_session_timeout = '{STALLED_WRITER_SEC}s';"
    f" SET LOCAL {'; SET LOCAL '.join(PLANNING)};"
    f" SELECT pg_advisory_xact_lock({WRITE_LOCK})"
)
# The server's own limit for silent transactions does not count while it waits for the client to take what it sends.
_END_STUCK_HOLDER = f"""
    SELECT count(pg_terminate_backend(a.pid))
    FROM pg_locks l JOIN pg_database d ON d.oid = l.database JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database() AND l.objsubid = 1
    AND l.classid = {WRITE_LOCK >> 32} AND l.objid = {WRITE_LOCK & 0xFFFF_FFFF}
    AND a.wait_event = 'ClientWrite' AND a.state_change <= clock_timestamp() - make_interval(secs => $1)
"""
_BY_ID = "r.rollout_id = ANY($1::text[])"
# One trip for all that a batch must know. What belongs to no rollout is in the first row alone.
_OPENING = f"""
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, h.position, h.number, h.events, h.draining,
           CASE WHEN row_number() OVER () = 1 THEN ({SELECT_API_SEEN}) END,
           CASE WHEN row_number() OVER () = 1 THEN c.queues END,
           CASE WHEN row_number() OVER () = 1 THEN c.queued END,
           CASE WHEN row_number() OVER () = 1 THEN c.running END,
           {", ".join(f"r.{name}" for name in STATE_COLUMNS)}
    FROM {NEWEST_HEAD} h
    CROSS JOIN (SELECT array_agg(queue) AS queues, array_agg(queued) AS queued, array_agg(running) AS running
                FROM queue_counts) c
    LEFT JOIN rollouts r ON {_BY_ID}
"""
_BEFORE_STATE = 9
# Only for batches that bring idempotency keys: the others' rollouts are found by one index.
OPENING_BY_KEY = _OPENING.replace(_BY_ID, f"{_BY_ID} OR (r.{tables.KEYED} AND r.idempotency_key = ANY($2::text[]))")


class Doubt(msgspec.Struct, frozen=True):
    """A commit whose answer was lost: what it would have left behind, and the last event by which it is known."""

    committed: Committed
    position: int
    hash: bytes


class CommitInDoubtError(Exception):
    """The answer of a commit was lost."""

    def __init__(self, doubt: Doubt | None) -> None:
        super().__init__("the answer of a commit was lost")
        self.doubt = doubt


class PostgresStore:
    """The writing connection. Every batch is one transaction; after any failure the connection is opened anew."""

    def __init__(
        self,
        url: sa.URL,
        clock: SharedClock,
        *,
        told_time: Callable[[], int] | None = None,
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        """``told_time`` replaces the database's time in what is judged and recorded: tests move it. ``retried`` is
        called whenever a transaction is tried again."""
        self._url = url
        self._retried = retried
        self._clock = clock
        self._told_time = told_time
        self._connection: Connection | None = None
        self._speaks_for_api = False
        self._guard_us: int | None = None
        self._written_at = 0
        self._reachable = True

    def guard_leases(self, silence_us: int) -> None:
        """See `Committer.guard_leases`."""
        self._speaks_for_api = True
        self._guard_us = silence_us
        self._written_at = self._now()

    def stop_guarding(self) -> None:
        """See `Committer.stop_guarding`."""
        self._speaks_for_api = False
        self._guard_us = None

    def _now(self) -> int:
        return self._clock() if self._told_time is None else self._told_time()

    async def run(self, take: Take) -> Committed:
        """One transaction for all commands; a refusal stands in the answers for its own command alone.

        ``take`` gives them, and is called once, when the lock is held; not at all where it cannot be had.

        Raises:
            LedgerUnavailable: nothing was written, as far as is known; try again later.
        """
        taken: list[Command[Any]] = []

        def take_once() -> list[Command[Any]]:
            if not taken:
                taken.extend(take())
            return taken

        result = await self._outcome(take_once)
        if not taken and isinstance(result, Exception):
            raise result
        steps = tries(taken)
        next(steps)
        while True:
            try:
                attempt = steps.send(result)
            except StopIteration as done:
                committed: Committed = done.value
                return committed
            result = await self._outcome(attempt.copy)

    async def _outcome(self, take: Take) -> Committed | Exception:
        try:
            return await self._persist(take)
        except Exception as error:
            return error

    async def _persist(self, take: Take) -> Committed:
        """One transaction, tried again while the database comes back. Nothing is carried out twice."""
        loop = asyncio.get_running_loop()
        # While it is known to be away, each batch asks once: its callers can wait elsewhere.
        give_up_at = loop.time() + (RETRY_SEC if self._reachable else 0.0)
        waits = pauses()
        doubt: Doubt | None = None
        tried = doubts = 0
        while True:
            tried += 1
            try:
                connection = await self._open()
                if doubt is not None and await self._landed(connection, doubt):
                    self._reachable = True
                    return doubt.committed
                doubt = None
                committed = await self._transact(connection, take)
            except BaseException as error:
                await self._drop_connection()
                if isinstance(error, CommitInDoubtError):
                    doubt = error.doubt
                    doubts += 1
                    if doubts == 1:
                        # It was there until the commit: there is time to look, also if it had been away.
                        give_up_at = loop.time() + RETRY_SEC
                elif not isinstance(error, Exception) or (doubt is None and not is_outage(error)):
                    raise
                # A process that was stopped for longer than that finds its connection broken: that is no outage yet.
                hasty = tried == 1 and self._reachable and not isinstance(error, LONG_WAITED)
                if loop.time() >= give_up_at and not hasty and not await self._ended_holder(error):
                    self._reachable = False
                    raise self._given_up(error, doubt) from error
                self._retried()
                log.debug("the ledger's connection failed and is opened anew: %s", describe(error))
                await asyncio.sleep(next(waits))
            else:
                self._reachable = True
                return committed

    def _given_up(self, error: BaseException, doubt: Doubt | None) -> LedgerUnavailable:
        if doubt is None:
            return unavailable(error, doing="written")
        return LedgerUnavailable(
            "the ledger cannot be reached, and whether the last write landed is not known; look before repeating it"
        )

    async def _transact(self, connection: Connection, take: Take) -> Committed:
        await connection.execute(BEGIN)
        # Only now: what was submitted while others had the lock is in this batch.
        commands = take()
        slack_sec = _slack_sec(commands)
        if slack_sec:
            await connection.execute(_more_patience(slack_sec))
        asked_at = monotonic_us()
        keys = named_keys(commands)
        if keys:
            rows = await connection.fetch(OPENING_BY_KEY, named_ids(commands), keys)
        else:
            rows = await connection.fetch(_OPENING, named_ids(commands))
        database_now: int = rows[0][0]
        self._clock.heard(database_now, took_us=monotonic_us() - asked_at)
        now = database_now if self._told_time is None else self._told_time()
        transaction = _begun(rows, now=now, speaks_for_api=self._speaks_for_api)
        before = transaction.head.position
        silent = self._guard_us is not None and now - self._written_at > self._guard_us
        steps = Batch(transaction, STATEMENTS).carry_out(commands, extend_first=SILENCE if silent else None)
        answers = await _drive(connection, steps)
        write = write_of(transaction)
        if write is not None:
            await connection.execute(write[0], *write[1], timeout=WRITE_LIMIT_SEC + slack_sec)
        head = transaction.head
        committed = Committed(answers, before + 1, head.position, transaction.changed, transaction.wakes)
        await self._commit(connection, committed, transaction, limit_sec=WRITE_LIMIT_SEC + slack_sec)
        self._written_at = now
        return committed

    async def _commit(
        self, connection: Connection, committed: Committed, transaction: Transaction, *, limit_sec: float
    ) -> None:
        try:
            status = await connection.execute("COMMIT", timeout=limit_sec)
        except BaseException as error:
            if not is_outage(error):
                raise
            # Beats and registrations leave no event; they can be repeated.
            last = transaction.event_rows[-1] if transaction.event_rows else None
            raise CommitInDoubtError(None if last is None else Doubt(committed, last[0], last[-1])) from error
        if status != "COMMIT":
            raise asyncpg.InterfaceError(f"the transaction was not committed but answered with {status}")

    async def _landed(self, connection: Connection, doubt: Doubt) -> bool:
        """Whether the commit in doubt is in the ledger. Under the lock, so that it cannot still be on its way."""
        await connection.execute(BEGIN)
        found = await connection.fetchval("SELECT hash FROM events WHERE position = $1", doubt.position)
        await connection.execute("ROLLBACK")
        return bool(found == doubt.hash)

    async def _ended_holder(self, error: BaseException) -> bool:
        """Whether the lock was free to be had: its holder, stopped while the server sent it something, was ended."""
        if not isinstance(error, asyncpg.LockNotAvailableError):
            return False
        try:
            ended = await (await self._open()).fetchval(_END_STUCK_HOLDER, float(STALLED_WRITER_SEC))
        except OUTAGES:
            await self._drop_connection()
            return False
        return bool(ended)

    async def _open(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._url, command_limit_sec=WRITE_LIMIT_SEC)
        return self._connection

    async def _drop_connection(self) -> None:
        # Ended at once, with whatever transaction was open: the server rolls it back and gives the lock on.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1.0)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()


def _slack_sec(commands: list[Command[Any]]) -> int:
    """How much longer than the limits a batch may take for its payloads' sake.

    Raises:
        ValueError: the server would not take them at all.
    """
    size = sum([command.size_bytes for command in commands])
    if size > LARGEST_BATCH_BYTES:
        raise ValueError(f"{size} bytes are more than PostgreSQL takes at once ({LARGEST_BATCH_BYTES}); send less")
    return size // SLOWEST_LINK_BYTES_PER_SEC


def _more_patience(slack_sec: int) -> str:
    return f"SET LOCAL idle_in_transaction_session_timeout = '{STALLED_WRITER_SEC + slack_sec}s'"


def _begun(rows: list[Row], *, now: int, speaks_for_api: bool) -> Transaction:
    """A transaction that knows what its commands name, from the rows of the opening query."""
    _, position, number, events, draining, api_seen_at, queues, queued, running, *_ = rows[0]
    counts = {queue: QueueCount(*pair) for queue, *pair in zip(queues or (), queued or (), running or (), strict=True)}
    transaction = Transaction(
        Head(position, number, events),
        counts,
        now=now,
        api_seen_at=now if speaks_for_api else api_seen_at,
        draining=bool(draining),
    )
    transaction.know([RolloutState(*tuple(row)[_BEFORE_STATE:]) for row in rows if row[_BEFORE_STATE] is not None])
    return transaction


async def _drive[Result](connection: Connection, steps: Steps[Result]) -> Result:
    """Answer the queries of some steps until they are done."""
    try:
        text, parameters = next(steps)
        while True:
            text, parameters = steps.send(await connection.fetch(numbered(text), *parameters))
    except StopIteration as done:
        result: Result = done.value
        return result


class PostgresCommitter:
    """Carries batches out on the loop, one at a time."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._landed: Landed | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, landed: Landed) -> None:
        self._landed = landed

    def commit(self, take: Take) -> None:
        self._task = asyncio.get_running_loop().create_task(self._carry_out(take), name="ledger-commit")

    async def _carry_out(self, take: Take) -> None:
        result: Committed | BaseException
        try:
            result = await self._store.run(take)
        except BaseException as error:
            result = error
        assert self._landed is not None
        self._landed(result)

    def guard_leases(self, silence_us: int) -> None:
        self._store.guard_leases(silence_us)

    def stop_guarding(self) -> None:
        self._store.stop_guarding()

    async def close(self) -> None:
        await self._store.close()
