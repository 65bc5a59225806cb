"""The SQLite side of a batch: begin, read, run the commands, write, commit. Synchronous, one thread, one connection.

Plain `sqlite3` statements on the engine's connection: SQLAlchemy gives the engine and its settings, but its
per-statement cost would be most of a small batch.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from rollbook_client.statuses import CancelDisposition
from rollbook_projections import RolloutState

from . import commands as cmd
from . import members
from . import statements as sql
from .codec import CodecError
from .engines import lock_path, writer_engine
from .locks import FileLock
from .refusals import CommandFailed, LedgerError, LedgerUnavailable
from .transaction import Head, QueueCount, Transaction

log = logging.getLogger(__name__)

LOCK_LIMIT_SEC = 5.0
MAX_CLAIM_LOOKS = 1_000
"""A claim ends overdue rollouts that it meets; more of them than this are left to the sweeps."""


def clock_us() -> int:
    """The host's time in microseconds since the epoch, UTC."""
    return time.time_ns() // 1_000


class Committed(msgspec.Struct, frozen=True):
    """What a batch left behind: answers in the commands' order, and what it changed."""

    answers: list[Any]
    first_position: int
    last_position: int
    changed: dict[int, RolloutState]
    wakes: bool = True
    """Whether anything happened that somebody may wait for."""


class SqliteStore:
    """The writing connection. Every batch is one transaction; after any failure the connection is opened anew."""

    def __init__(
        self, url: sa.URL, *, clock: Callable[[], int] = clock_us, lock_limit_sec: float = LOCK_LIMIT_SEC
    ) -> None:
        self._engine = writer_engine(url, busy_timeout_sec=lock_limit_sec)
        self._lock = FileLock(lock_path(url))
        self._lock_limit_sec = lock_limit_sec
        self._wait_sec = lock_limit_sec
        self._busy_timeout_sec = lock_limit_sec
        self._clock = clock
        self._connection: sa.PoolProxiedConnection | None = None
        self._speaks_for_api = False
        self._guard_us: int | None = None
        self._written_at = 0

    def guard_leases(self, silence_us: int) -> None:
        """From now on this is an API's writer: its commands prove that an API is alive.

        When it wrote nothing for ``silence_us`` (a full disk, a stalled process), its next batch first extends all
        live leases: they could not be renewed meanwhile. The API's beats must come more often than that.
        """
        self._speaks_for_api = True
        self._guard_us = silence_us
        self._written_at = self._clock()

    def stop_guarding(self) -> None:
        """The API takes no more requests: what this writer still does says nothing about leases any more."""
        self._speaks_for_api = False
        self._guard_us = None

    def run(self, commands: list[cmd.Command[Any]]) -> Committed:
        """One transaction for all commands; a refusal stands in the answers for its own command alone.

        Raises:
            LedgerUnavailable: nothing was written; try again later.
        """
        try:
            return self._run(commands)
        except LedgerUnavailable:
            raise
        except Exception as error:
            # One command is bad in a way the rules did not foresee. Alone, each of the others goes through.
            if len(commands) > 1:
                return self._one_by_one(commands)
            log.exception("the ledger could not carry out %s", type(commands[0]).__name__)
            failed = CommandFailed(f"{type(commands[0]).__name__} failed: {error}")
            failed.__cause__ = error
            return Committed([failed], 0, 0, {})

    def run_now(self, commands: list[cmd.Command[Any]]) -> Committed | None:
        """The same without waiting for anyone; None where others have their turn, and then nothing was written.

        Raises:
            LedgerUnavailable: nothing was written, for another reason than others' turns.
        """
        try:
            self._be_patient(False)
            return self.run(commands)
        except LedgerUnavailable as error:
            cause = error.__cause__
            busy = isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if busy or isinstance(cause, TimeoutError):
                return None
            raise
        finally:
            self._be_patient(True)

    def _be_patient(self, patient: bool) -> None:
        """Whether this connection waits for others' locks, up to the limit, or not at all."""
        self._wait_sec = self._lock_limit_sec if patient else 0.0

    def check_writable(self) -> None:
        """Write something and take it back.

        Raises:
            LedgerUnavailable: the database cannot be written now.
        """
        with self._turn():
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE ledger_head SET id = 1 WHERE id = 1")
            db.execute("ROLLBACK")

    def _one_by_one(self, commands: list[cmd.Command[Any]]) -> Committed:
        parts: list[Committed] = []
        for command in commands:
            try:
                parts.append(self.run([command]))
            except LedgerUnavailable as error:
                # What was committed before stands, and must be answered so.
                parts.extend([Committed([error], 0, 0, {})] * (len(commands) - len(parts)))
                break
        written = [part for part in parts if part.last_position]
        changed: dict[int, RolloutState] = {}
        for part in written:
            changed.update(part.changed)
        # Others may have written between the parts: only the last one is known to follow what a reader saw before it.
        return Committed(
            [part.answers[0] for part in parts],
            written[-1].first_position if written else 0,
            written[-1].last_position if written else 0,
            changed,
            any(part.wakes for part in written),
        )

    def _run(self, commands: list[cmd.Command[Any]]) -> Committed:
        with self._turn():
            return self._transact(commands)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """This process's turn to write; whatever fails meanwhile leaves nothing of it behind."""
        try:
            self._lock.acquire(self._wait_sec)
        except OSError as error:
            raise LedgerUnavailable(f"the ledger cannot be written now: {error}") from error
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError):
            self._drop_connection()
            raise
        except (sqlite3.DatabaseError, OSError) as error:
            self._drop_connection()
            raise LedgerUnavailable(f"the ledger cannot be written now: {error}") from error
        except BaseException:
            self._drop_connection()
            raise
        finally:
            self._lock.release()

    def _transact(self, commands: list[cmd.Command[Any]]) -> Committed:
        db = self._open()
        if self._busy_timeout_sec != self._wait_sec:
            db.execute(f"PRAGMA busy_timeout={int(self._wait_sec * 1_000)}")
            self._busy_timeout_sec = self._wait_sec
        db.execute("BEGIN IMMEDIATE")
        now = self._clock()
        batch = _Batch(db, commands, now, speaks_for_api=self._speaks_for_api)
        before = batch.transaction.head.position
        if self._guard_us is not None and now - self._written_at > self._guard_us:
            batch.run(cmd.ExtendLeases(reason="this API could not renew leases for a while"))
        answers = [batch.answer(command) for command in commands]
        batch.write()
        transaction = batch.transaction
        self._commit(db, transaction)
        self._written_at = now
        return Committed(answers, before + 1, transaction.head.position, transaction.changed, transaction.wakes)

    def _commit(self, db: sqlite3.Connection, transaction: Transaction) -> None:
        try:
            db.execute("COMMIT")
        except sqlite3.DatabaseError:
            # The answer may be lost though the commit is on disk; the last event's hash tells.
            self._drop_connection()
            if not transaction.event_rows or not self._is_written(transaction.event_rows[-1]):
                raise

    def _is_written(self, event_row: tuple[Any, ...]) -> bool:
        row = self._open().execute(sql.SELECT_EVENT_HASH, (event_row[0],)).fetchone()
        return row is not None and bytes(row[0]) == event_row[-1]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = self._engine.raw_connection()
                self._busy_timeout_sec = self._lock_limit_sec
            except sa.exc.DBAPIError as error:
                raise sqlite3.OperationalError(str(error.orig)) from error
        return cast("sqlite3.Connection", self._connection.driver_connection)

    def _drop_connection(self) -> None:
        # Closing rolls back whatever is open, also after a commit that failed halfway.
        if self._connection is not None:
            self._connection.invalidate()
            self._connection = None

    def close(self) -> None:
        """Close the connection; the last one on the file folds the write-ahead log back into it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()
        self._lock.close()


class _Batch:
    """The commands of one transaction against what they need to read."""

    def __init__(
        self, db: sqlite3.Connection, commands: list[cmd.Command[Any]], now: int, *, speaks_for_api: bool
    ) -> None:
        self._db = db
        self._now = now
        head = Head(*db.execute(sql.SELECT_HEAD).fetchone())
        counts = {row[0]: QueueCount(row[1], row[2]) for row in db.execute(sql.SELECT_COUNTS)}
        api_seen_at = now if speaks_for_api else db.execute(sql.SELECT_API_SEEN).fetchone()[0]
        self.transaction = Transaction(head, counts, now=now, api_seen_at=api_seen_at)
        self._read_states(_ids(commands))

    def _read_states(self, ids: set[str]) -> None:
        wanted = list(ids)
        for start in range(0, len(wanted), sql.SIZES[0]):
            part: list[str | None] = list(wanted[start : start + sql.SIZES[0]])
            text, size = sql.select_by_ids(len(part))
            self.transaction.know(_states(self._db.execute(text, part + [None] * (size - len(part)))))

    def answer(self, command: cmd.Command[Any]) -> Any:
        """A command's answer, or the error it fails with."""
        try:
            return self.run(command)
        except CodecError as error:
            return CommandFailed(str(error))
        except LedgerError as error:
            return error

    def run(self, command: cmd.Command[Any]) -> Any:
        """Carry a command out within the transaction."""
        return _RUNNERS[type(command)](self, command)

    def one(self, command: Any) -> RolloutState | None:
        """Commands about one rollout answer its state."""
        self.transaction.decide(command.rollout_id, command)
        return self.transaction.states.get(command.rollout_id)

    def admit(self, command: cmd.Admit) -> RolloutState:
        transaction = self.transaction
        transaction.decide(command.rollout_id, command, queue=command.queue)
        transaction.seal(command.rollout_id, command.sealed)
        return transaction.states[command.rollout_id]

    def cancel(self, command: cmd.Cancel) -> dict[str, CancelDisposition]:
        ids: Iterable[str] = command.ids if command.ids is not None else self._cancellable(command)
        dispositions = {}
        for rollout_id in dict.fromkeys(ids):
            before = self.transaction.states.get(rollout_id)
            self.transaction.decide(rollout_id, command)
            after = self.transaction.states.get(rollout_id)
            dispositions[rollout_id] = _disposition(before, after)
        return dispositions

    def _cancellable(self, command: cmd.Cancel) -> list[str]:
        if not _storable(command.prefix or ""):
            return []
        text, bounds = sql.select_cancellable(command.prefix)
        known = self.transaction.know(_states(self._db.execute(text, (*bounds, command.listed_since, *bounds))))
        ids = {state.rollout_id: None for state in known}
        prefix = command.prefix or ""
        for state in self.transaction.states.values():
            if state.rollout_id.startswith(prefix) and not state.terminal:
                ids[state.rollout_id] = None
        return list(ids)

    def claim(self, command: cmd.Claim) -> tuple[RolloutState, ...]:
        members.check_alive(self._db, command.scheduler)
        claimed: list[RolloutState] = []
        text = sql.select_claimable(len(command.queues))
        last, size, left = 0, command.limit, MAX_CLAIM_LOOKS
        # What this transaction has claimed or ended already still waits in the database: look further then.
        while len(claimed) < command.limit and left > 0:
            found = self.transaction.know(_states(self._db.execute(text, (*command.queues, last, size))))
            for state in found:
                if len(claimed) == command.limit:
                    break
                self.transaction.decide(state.rollout_id, command)
                now = self.transaction.states[state.rollout_id]
                if now.scheduler == command.scheduler and now.attempt != state.attempt:
                    claimed.append(now)
            if len(found) < size:
                break
            last, left, size = found[-1].number, left - size, sql.SIZES[0]
        return tuple(claimed)

    def sweep(self, command: cmd.Command[int], text: str, parameters: tuple[int, ...]) -> int:
        known = self.transaction.know(_states(self._db.execute(text, parameters)))
        return sum(self.transaction.decide(state.rollout_id, command) for state in known)

    def expire_leases(self, command: cmd.ExpireLeases) -> int:
        limits = (self._now, self.transaction.api_seen_at, command.limit)
        return self.sweep(command, sql.SELECT_EXPIRED, limits)

    def expire_deadlines(self, command: cmd.ExpireDeadlines) -> int:
        return self.sweep(command, sql.SELECT_LATE, (self._now, command.limit))

    def take_over(self, command: cmd.TakeOver) -> int:
        members.bury_dead_schedulers(self._db, command.dead_after_us, self._now, except_for=command.by)
        return self.sweep(command, sql.SELECT_ORPHANED, (command.limit,))

    def extend_leases(self, command: cmd.ExtendLeases) -> int:
        return self.sweep(command, sql.SELECT_LIVE, ())

    def register(self, command: cmd.Register) -> bool:
        alone = not members.others_alive(self._db, command, self._now)
        if command.kind == "scheduler":
            # Whose silence lets this one have the queue must not come back to it.
            members.bury_dead_schedulers(self._db, command.dead_after_us, self._now, except_for=command.member_id)
        members.register(self._db, command, self._now)
        if command.kind == "api" and alone:
            self.extend_leases(cmd.ExtendLeases(reason="no API was alive to renew leases"))
        return alone

    def beat(self, command: cmd.Beat) -> None:
        members.beat(self._db, command, self._now)

    def leave(self, command: cmd.Leave) -> None:
        members.leave(self._db, command, self._now)

    def write(self) -> None:
        """Everything the commands added, one statement per table and size."""
        done = self.transaction
        if not done.event_rows:
            return
        execute = self._db.execute
        for text, parameters in sql.INSERT_EVENTS.chunks(done.event_rows):
            execute(text, parameters)
        rows = [msgspec.structs.astuple(state) for state in done.changed.values()]
        for text, parameters in sql.UPSERT_ROLLOUTS.chunks(rows):
            execute(text, parameters)
        for table, history in done.history.items():
            for text, parameters in sql.INSERT_HISTORY[table].chunks(history):
                execute(text, parameters)
        sealed = [item for item in done.sealed.items() if item[0] not in done.opened]
        for text, parameters in sql.INSERT_SECRETS.chunks(sealed):
            execute(text, parameters)
        if done.opened:
            self._db.executemany("DELETE FROM secrets WHERE number = ?", [(number,) for number in done.opened])
        counts = [(queue, done.counts[queue].queued, done.counts[queue].running) for queue in done.changed_queues]
        for text, parameters in sql.UPSERT_COUNTS.chunks(counts):
            execute(text, parameters)
        execute(sql.UPDATE_HEAD, (done.head.position, done.head.number, done.head.events))


def _states(rows: Iterable[tuple[Any, ...]]) -> list[RolloutState]:
    return [RolloutState(*row) for row in rows]


def _ids(commands: list[cmd.Command[Any]]) -> set[str]:
    ids: set[str] = set()
    for command in commands:
        rollout_id = getattr(command, "rollout_id", None)
        if rollout_id is not None:
            ids.add(rollout_id)
        elif isinstance(command, cmd.Cancel) and command.ids is not None:
            ids.update(command.ids)
    return {rollout_id for rollout_id in ids if _storable(rollout_id)}


def _storable(text: str) -> bool:
    """Whether the database can be asked for it: ids with lone surrogates exist nowhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _disposition(before: RolloutState | None, after: RolloutState | None) -> CancelDisposition:
    if before is None or after is None or before.terminal:
        return CancelDisposition.NOT_FOUND
    if after.cancel_requested_at is None:
        return CancelDisposition.NOT_FOUND  # the lease was over: it ended as a lease failure
    return CancelDisposition.CANCELLED_QUEUED if before.scheduler is None else CancelDisposition.CANCELLED_RUNNING


_RUNNERS: dict[type, Callable[[_Batch, Any], Any]] = {
    cmd.Admit: _Batch.admit,
    cmd.Poll: _Batch.one,
    cmd.Cancel: _Batch.cancel,
    cmd.Claim: _Batch.claim,
    cmd.EnterPhase: _Batch.one,
    cmd.FinishAttempt: _Batch.one,
    cmd.CloseAttempt: _Batch.one,
    cmd.ExpireLeases: _Batch.expire_leases,
    cmd.ExpireDeadlines: _Batch.expire_deadlines,
    cmd.TakeOver: _Batch.take_over,
    cmd.ExtendLeases: _Batch.extend_leases,
    cmd.Register: _Batch.register,
    cmd.Beat: _Batch.beat,
    cmd.Leave: _Batch.leave,
}
