"""The writing store of each database as tests use it: blocking, one batch at a time, with a clock that they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import sqlalchemy as sa

from rollbook.ledger.batch import Committed
from rollbook.ledger.clock import SharedClock
from rollbook.ledger.commands import Command
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres.blocking import LoopThread
from rollbook.ledger.postgres.store import PostgresStore
from rollbook.ledger.sqlite.store import SqliteStore
from rollbook.ledger.urls import POSTGRES

LOCK_LIMIT_SEC = 0.2


class Store(Protocol):
    """What the stores have in common."""

    def run(self, commands: list[Command[Any]]) -> Committed: ...

    def guard_leases(self, silence_us: int) -> None: ...

    def stop_guarding(self) -> None: ...

    def close(self) -> None:
        """Close the connection; the next batch opens another."""


def open_store(url: sa.URL, clock: Callable[[], int]) -> Store:
    """The store of a migrated ledger."""
    if url.get_backend_name() == POSTGRES:
        return BlockingPostgresStore(url, clock)
    return SqliteStore(url, clock=clock, lock_limit_sec=LOCK_LIMIT_SEC)


def elsewhere(ledger: Ledger, *commands: Command[Any], ago_sec: float = 0.0) -> list[Any]:
    """Another process carries commands out, as it were so long ago, and gives no hint of it; their answers.

    Nothing else of this process runs meanwhile.
    """
    store = open_store(ledger.url, lambda: ledger.clock() - int(ago_sec * MICROSECONDS))
    try:
        return store.run(list(commands)).answers
    finally:
        store.close()


class BlockingPostgresStore:
    """PostgreSQL's store on a loop of its own, which runs while there is a connection."""

    def __init__(self, url: sa.URL, clock: Callable[[], int]) -> None:
        self.store = PostgresStore(url, SharedClock(), told_time=clock)
        self._thread: LoopThread | None = None

    def run(self, commands: list[Command[Any]]) -> Committed:
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread.run(self.store.run(lambda: commands))

    def guard_leases(self, silence_us: int) -> None:
        self.store.guard_leases(silence_us)

    def stop_guarding(self) -> None:
        self.store.stop_guarding()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.run(self.store.close())
            self._thread.close()
            self._thread = None
