"""The ledger of one process: its writer, reader, feed and secret keys, opened and closed together."""

from __future__ import annotations

import os
import socket

import sqlalchemy as sa

from .commands import Command
from .engines import key_path, parse_url
from .feed import Feed
from .reader import Reader
from .refusals import LedgerUnavailable
from .schema import check, upgrade
from .secrets import KEY_VARIABLE, SecretKeyError, SecretKeys
from .sqlite import SqliteStore
from .writer import GroupCommitWriter


def load_keys(url: sa.URL) -> SecretKeys:
    """The secret keys of a migrated ledger; a first one is made only where nothing was sealed with another.

    Raises:
        SecretKeyError: no key can be read or made, or the one that rollouts are waiting with is gone.
    """
    path = key_path(url)
    if not path.exists() and not os.environ.get(KEY_VARIABLE, "").strip() and _holds_sealed(url):
        raise SecretKeyError(
            f"{path} is gone, and rollouts that are not over have secrets sealed with it; put it back, or set "
            f"{KEY_VARIABLE} to a new key (`rollbook secret-key`) and those rollouts fail"
        )
    return SecretKeys.load(path)


def _holds_sealed(url: sa.URL) -> bool:
    reader = Reader(url)
    try:
        return bool(reader.query("SELECT 1 FROM secrets LIMIT 1"))
    finally:
        reader.close_short()


class Ledger:
    """Open it on the event loop that will use it; a waiting caller of `submit` holds no connection of its own."""

    def __init__(self, url: sa.URL, keys: SecretKeys, *, hint_socket: socket.socket | None = None) -> None:
        self.url = url
        self.keys = keys
        self.reader = Reader(url)
        self.feed = Feed(self.reader, hint_socket=hint_socket)
        self._store = SqliteStore(url)
        self._writer = GroupCommitWriter(self._store, self.feed.committed)

    @classmethod
    async def open(cls, database_url: str, *, migrate: bool = True, hint_socket: socket.socket | None = None) -> Ledger:
        """A ledger ready for use. ``hint_socket`` is a datagram socket to the processes that share the ledger.

        Raises:
            DatabaseUrlError: the URL cannot be used.
            SchemaError: ``migrate`` is off and the schema is not current.
            SecretKeyError: the secret key cannot be read.
            LedgerUnavailable: the database cannot be opened or written.
        """
        url = parse_url(database_url)
        if migrate:
            upgrade(url)
        check(url)
        ledger = cls(url, load_keys(url), hint_socket=hint_socket)
        ledger._writer.start()
        try:
            ledger.feed.start()
        except LedgerUnavailable:
            await ledger.close()
            raise
        return ledger

    async def submit[Answer](self, command: Command[Answer]) -> Answer:
        """Carry a command out; when this returns, its events are on disk.

        Raises:
            Refusal: a rule said no (see `refusals`).
            LedgerUnavailable: nothing was written; try again later.
        """
        return await self._writer.submit(command)

    def guard_leases(self, silence_us: int) -> None:
        """Make this an API's ledger: see `SqliteStore.guard_leases`. Call it before the first command."""
        self._store.guard_leases(silence_us)

    def stop_guarding(self) -> None:
        """The API of this ledger takes no more requests: see `SqliteStore.stop_guarding`."""
        self._store.stop_guarding()

    async def close(self) -> None:
        """Write what waits, wake what waits for changes, and close every connection."""
        await self._writer.close()
        await self.feed.close()
        await self.reader.close()
