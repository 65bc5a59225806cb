"""PostgreSQL as the ledger's database."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import sqlalchemy as sa

from rollbook.ledger.clock import SharedClock, host_clock_us
from rollbook.ledger.database import Capabilities, Committer, Hints, Reads, Snapshot, Upkeep
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.refusals import LedgerUnavailable

from . import migrating, snapshot, upkeep
from .blocking import blocking_connection
from .checkup import check_server
from .connecting import connect, is_outage, place, unusable
from .dialect import PostgresDialect
from .hints import PostgresHints
from .pooling import Pooling, find_pooling
from .reads import PostgresReads
from .store import PostgresCommitter, PostgresStore


class PostgresDatabase:
    """One database of a server, and the processes anywhere that share it."""

    capabilities = Capabilities(migrates_at_start=False, makes_its_key=False, many_hosts=True, checks_pages=False)

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.key_file = None  # processes on many machines must have the same
        self.dialect = PostgresDialect()
        self.retries = 0
        self._clock = SharedClock()
        self._pooling = Pooling.NONE

    def describe(self) -> str:
        return place(self.url)

    def clock(self) -> int:
        return self._clock()

    def skew_us(self) -> int:
        return self._clock() - host_clock_us()

    def check_up(self) -> AsyncIterator[Diagnosis]:
        return check_server(self.url, place=self.describe(), clock=self._clock)

    def _retried(self) -> None:
        self.retries += 1

    def committer(self) -> Committer:
        return PostgresCommitter(PostgresStore(self.url, self._clock, retried=self._retried))

    def reads(self) -> Reads:
        return PostgresReads(self.url, pooled=lambda: self._pooling is Pooling.TRANSACTION, retried=self._retried)

    def hints(self, reads: Reads, hint_socket: socket.socket | None) -> Hints:
        return PostgresHints(self.url, notifies=lambda: self._pooling is Pooling.NONE)

    async def greet(self) -> None:
        try:
            connection = await connect(self.url)
            try:
                self._pooling = await find_pooling(connection, self.url)
            finally:
                connection.terminate()
            connection = await connect(self.url)
            try:
                self._clock.heard(
                    await connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
                )
            finally:
                connection.terminate()
        except Exception as error:
            if not is_outage(error) or isinstance(error, LedgerUnavailable):
                raise
            raise unusable(error, self.url) from error

    def check_writable(self) -> None:
        with blocking_connection(self.url, doing="written") as connection:
            connection.execute("BEGIN; UPDATE ledger_head SET id = 1 WHERE id = 1; ROLLBACK")

    def revision(self) -> str | None:
        return migrating.revision(self.url)

    def migrate(self, to: str, *, down: bool) -> None:
        migrating.migrate(self.url, to, down=down)

    def upkeep(self) -> AbstractContextManager[Upkeep]:
        return upkeep.upkeep(self.url)

    def snapshot(self, *, undecoded: bool = False) -> AbstractContextManager[Snapshot]:
        return snapshot.snapshot(self.url)
