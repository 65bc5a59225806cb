"""SQLite as the ledger's database."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import sqlalchemy as sa

from rollbook.ledger.clock import host_clock_us
from rollbook.ledger.database import Capabilities, Committer, Hints, Reads, Snapshot, Upkeep
from rollbook.ledger.diagnosis import Diagnosis

from . import migrating, snapshot, upkeep
from .checkup import check_files
from .committer import StoreCommitter
from .dialect import SqliteDialect
from .engines import database_path, key_path
from .hints import FileHints, SocketHints
from .reads import SqliteReads
from .store import SqliteStore


class SqliteDatabase:
    """One file, and the processes of one host that share it."""

    capabilities = Capabilities(migrates_at_start=True, makes_its_key=True, many_hosts=False, checks_pages=True)

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.key_file = key_path(url)
        self.dialect = SqliteDialect()
        self.retries = 0  # there is no connection that could fail

    def describe(self) -> str:
        return str(database_path(self.url))

    def clock(self) -> int:
        return host_clock_us()

    def skew_us(self) -> int:
        return 0

    async def check_up(self) -> AsyncIterator[Diagnosis]:
        for found in check_files(self.url):
            yield found

    def committer(self) -> Committer:
        return StoreCommitter(SqliteStore(self.url))

    def reads(self) -> Reads:
        return SqliteReads(self.url)

    def hints(self, reads: Reads, hint_socket: socket.socket | None) -> Hints:
        if hint_socket is not None:
            return SocketHints(hint_socket)
        assert isinstance(reads, SqliteReads)
        return FileHints(reads)

    async def greet(self) -> None:
        return None

    def check_writable(self) -> None:
        store = SqliteStore(self.url)
        try:
            store.check_writable()
        finally:
            store.close()

    def revision(self) -> str | None:
        return migrating.revision(self.url)

    def migrate(self, to: str, *, down: bool) -> None:
        migrating.migrate(self.url, to, down=down)

    def upkeep(self) -> AbstractContextManager[Upkeep]:
        return upkeep.upkeep(self.url)

    def snapshot(self, *, undecoded: bool = False) -> AbstractContextManager[Snapshot]:
        return snapshot.snapshot(self.url, undecoded=undecoded)
