"""The ledger of one process: its writer, reader, feed and secret keys, opened and closed together."""

from __future__ import annotations

import asyncio
import socket

from .commands import Command
from .database import Database, database_of
from .feed import Feed
from .keyring import process_keys
from .reader import Reader
from .refusals import LedgerUnavailable
from .schema import check_database, upgrade
from .secrets import SecretKeys
from .urls import parse_url
from .writer import GroupCommitWriter


class Ledger:
    """Open it on the event loop that will use it; a waiting caller of `submit` holds no connection of its own."""

    def __init__(
        self, database: Database, keys: SecretKeys | None, *, hint_socket: socket.socket | None = None
    ) -> None:
        self.url = database.url
        self._keys = keys
        self.clock = database.clock
        """The time that leases are judged by, in microseconds since the epoch: the database's where it has one."""
        self.skew_us = database.skew_us
        """How far that clock is ahead of this host's, in microseconds."""
        reads = database.reads()
        self.reader = Reader(database, reads)
        self.feed = Feed(self.reader, database.hints(reads, hint_socket))
        self._committer = database.committer()
        self._writer = GroupCommitWriter(self._committer, self.feed.committed)
        self.meters = self._writer.meters
        self._database = database

    @classmethod
    async def open(
        cls,
        database_url: str,
        *,
        migrate: bool = True,
        with_keys: bool = True,
        hint_socket: socket.socket | None = None,
    ) -> Ledger:
        """A ledger ready for use. ``hint_socket`` is a datagram socket to the processes that share the ledger.

        ``migrate`` brings the schema up to date where the database leaves that to its processes. Whoever neither seals
        nor opens needs no secret key: ``with_keys`` says so.

        Raises:
            DatabaseUrlError: the URL cannot be used.
            SchemaError: the schema is not current, and not ours to change.
            SecretKeyError: there is no secret key, it cannot be read, or it is not the one that the ledger goes by.
            LedgerUnavailable: the database cannot be opened or written.
        """
        database = database_of(parse_url(database_url))
        await database.greet()
        if database.capabilities.many_hosts:
            await asyncio.to_thread(check_database, database)
            keys = await asyncio.to_thread(process_keys, database) if with_keys else None
        else:
            if migrate and database.capabilities.migrates_at_start:
                upgrade(database.url)
            check_database(database)
            keys = process_keys(database) if with_keys else None
        ledger = cls(database, keys, hint_socket=hint_socket)
        ledger._writer.start()
        try:
            await ledger.feed.start()
        except LedgerUnavailable:
            await ledger.close()
            raise
        return ledger

    @property
    def keys(self) -> SecretKeys:
        """What seals, opens and signs."""
        assert self._keys is not None, "this ledger was opened without its secret keys"
        return self._keys

    async def submit[Answer](self, command: Command[Answer]) -> Answer:
        """Carry a command out; when this returns, its events are on disk.

        Raises:
            Refusal: a rule said no (see `refusals`).
            LedgerUnavailable: nothing was written; try again later.
        """
        return await self._writer.submit(command)

    @property
    def retries(self) -> int:
        """How often this process tried a transaction or a read again because its connection failed."""
        return self._database.retries

    def guard_leases(self, silence_us: int) -> None:
        """Make this an API's ledger: see `Committer.guard_leases`. Call it before the first command."""
        self._committer.guard_leases(silence_us)

    def stop_guarding(self) -> None:
        """The API of this ledger takes no more requests: see `Committer.stop_guarding`."""
        self._committer.stop_guarding()

    async def close(self) -> None:
        """Write what waits, wake what waits for changes, and close every connection."""
        await self._writer.close()
        await self.feed.close()
        await self.reader.close()
