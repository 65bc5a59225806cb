"""The SQLite side of a batch: begin, read, run the commands, write, commit. Synchronous, one thread, one connection.

Plain `sqlite3` statements on the engine's connection: SQLAlchemy gives the engine and its settings, but its
per-statement cost would be most of a small batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from rollbook.ledger.batch import Batch, Committed, named_ids, named_keys, states, tries
from rollbook.ledger.clock import host_clock_us
from rollbook.ledger.commands import Command
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.statements import SELECT_API_SEEN, SELECT_COUNTS, SELECT_EVENT_HASH, Steps
from rollbook.ledger.transaction import Head, QueueCount, Transaction

from .dialect import STATEMENTS
from .engines import lock_path, writer_engine
from .inserts import INSERT_EVENTS, INSERT_HISTORY, INSERT_SECRETS, UPDATE_HEAD, UPSERT_COUNTS, UPSERT_ROLLOUTS
from .locks import FileLock

LOCK_LIMIT_SEC = 5.0
_SELECT_HEAD = "SELECT position, number, events, draining FROM ledger_head WHERE id = 1"
SILENCE = "this API could not renew leases for a while"


class SqliteStore:
    """The writing connection. Every batch is one transaction; after any failure the connection is opened anew."""

    def __init__(
        self, url: sa.URL, *, clock: Callable[[], int] = host_clock_us, lock_limit_sec: float = LOCK_LIMIT_SEC
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

    def run(self, commands: list[Command[Any]]) -> Committed:
        """One transaction for all commands; a refusal stands in the answers for its own command alone.

        Raises:
            LedgerUnavailable: nothing was written; try again later.
        """
        steps = tries(commands)
        result: Committed | Exception | None = None
        while True:
            try:
                attempt = next(steps) if result is None else steps.send(result)
            except StopIteration as done:
                committed: Committed = done.value
                return committed
            try:
                result = self._run(attempt)
            except Exception as error:
                result = error

    def run_now(self, commands: list[Command[Any]]) -> Committed | None:
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

    def _run(self, commands: list[Command[Any]]) -> Committed:
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

    def _transact(self, commands: list[Command[Any]]) -> Committed:
        db = self._open()
        if self._busy_timeout_sec != self._wait_sec:
            db.execute(f"PRAGMA busy_timeout={int(self._wait_sec * 1_000)}")
            self._busy_timeout_sec = self._wait_sec
        db.execute("BEGIN IMMEDIATE")
        now = self._clock()
        transaction = _begun(db, commands, now, speaks_for_api=self._speaks_for_api)
        before = transaction.head.position
        silent = self._guard_us is not None and now - self._written_at > self._guard_us
        steps = Batch(transaction, STATEMENTS).carry_out(commands, extend_first=SILENCE if silent else None)
        answers = _drive(db, steps)
        _write(db, transaction)
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
        row = self._open().execute(SELECT_EVENT_HASH, (event_row[0],)).fetchone()
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


def _begun(db: sqlite3.Connection, commands: list[Command[Any]], now: int, *, speaks_for_api: bool) -> Transaction:
    """A transaction that knows what its commands name."""
    position, number, events, draining = db.execute(_SELECT_HEAD).fetchone()
    counts = {row[0]: QueueCount(row[1], row[2]) for row in db.execute(SELECT_COUNTS)}
    api_seen_at = now if speaks_for_api else db.execute(SELECT_API_SEEN).fetchone()[0]
    transaction = Transaction(
        Head(position, number, events), counts, now=now, api_seen_at=api_seen_at, draining=bool(draining)
    )
    for query in STATEMENTS.states("rollout_id", named_ids(commands)):
        transaction.know(states(db.execute(*query)))
    for query in STATEMENTS.states("idempotency_key", named_keys(commands)):
        transaction.know(states(db.execute(*query)))
    return transaction


def _drive[Result](db: sqlite3.Connection, steps: Steps[Result]) -> Result:
    """Answer the queries of some steps until they are done."""
    try:
        query = next(steps)
        while True:
            query = steps.send(db.execute(*query).fetchall())
    except StopIteration as done:
        result: Result = done.value
        return result


def _write(db: sqlite3.Connection, done: Transaction) -> None:
    """Everything the commands added, one statement per table and size."""
    if not done.event_rows:
        return
    execute = db.execute
    for text, parameters in INSERT_EVENTS.chunks(done.event_rows):
        execute(text, parameters)
    rows = [msgspec.structs.astuple(state) for state in done.changed.values()]
    for text, parameters in UPSERT_ROLLOUTS.chunks(rows):
        execute(text, parameters)
    for table, history in done.history.items():
        for text, parameters in INSERT_HISTORY[table].chunks(history):
            execute(text, parameters)
    sealed = [item for item in done.sealed.items() if item[0] not in done.opened]
    for text, parameters in INSERT_SECRETS.chunks(sealed):
        execute(text, parameters)
    if done.opened:
        db.executemany("DELETE FROM secrets WHERE number = ?", [(number,) for number in done.opened])
    counts = [(queue, done.counts[queue].queued, done.counts[queue].running) for queue in done.changed_queues]
    for text, parameters in UPSERT_COUNTS.chunks(counts):
        execute(text, parameters)
    execute(UPDATE_HEAD, (done.head.position, done.head.number, done.head.events))
