"""Where ledgers are measured: files of SQLite, or a PostgreSQL server of our own that waits for its disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy.engine import make_url

from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import KEY_VARIABLE, new_key
from rollbook.ledger.urls import parse_url
from tests.support.postgres import execute, private_server
from tests.support.postgres_server import PrivateServer

from . import copies, raw_postgres, raw_sqlite
from .processes import Process, open_files, whole_cpu_sec

SQLITE, POSTGRESQL = "sqlite", "postgresql"
PLACES = (SQLITE, POSTGRESQL)

# As a server comes out of its box, but for what its tests switch off. Durable.
_SETTINGS = {"autovacuum": "on", "shared_buffers": "128MB"}


class Place(Protocol):
    """One database system."""

    name: str
    title: str
    durability: str
    """How an acknowledged write is on the disk, in the system's words."""
    held: str
    """What `holding` counts."""
    raw: str
    """What `raw_submits_per_sec` does in a transaction."""
    least_over_raw: float
    """How much of the raw write-set's rate 64 callers must reach."""
    least_busy_over_idle: float
    """How much of their rate on an idle loop 64 callers must keep beside a busy one. Where a commit is four trips to a
    server, it waits for four turns of the loop, and batches grow only as far as there are callers."""
    least_replayed: int
    """Events each second that a verified replay must reach."""
    most_lone_latency: float | None
    """How many times the reference's a lone caller's completion may take; None where each step is a trip to a server,
    and no bar is set."""
    parked_polls: int
    ways_to_wake: tuple[tuple[str, bool], ...]
    """How one process learns of another's commit, and whether it needs a hint socket for that."""

    def describe(self) -> str:
        """The system and its version."""

    def ledger(self) -> AbstractContextManager[str]:
        """The URL of an empty, migrated ledger; it is gone after the block."""

    def raw_submits_per_sec(self, url: str, callers: int, seconds: float) -> float:
        """The rate at which the system's driver alone writes the lease renewals of that ledger, and their rollouts,
        again: as many a transaction as there are callers."""

    def multiply(self, url: str, times: int) -> None:
        """See `copies`."""

    def size_bytes(self, url: str) -> int:
        """What the ledger takes on the disk."""

    def holding(self, url: str, processes: Sequence[Process]) -> int:
        """How many descriptors the processes have on the database, or how many connections there are to it."""

    def cpu_sec(self) -> float | None:
        """What the system's own processes have used so far; None where it has none."""


class Files:
    """SQLite."""

    name = SQLITE
    title = "SQLite"
    durability = "SQLite, WAL, synchronous=FULL"
    held = "open files on the database"
    raw = "sqlite3 alone, with one SELECT, INSERT and UPSERT by executemany, COMMIT"
    least_over_raw = 0.35
    least_busy_over_idle = 0.3
    least_replayed = 200_000
    most_lone_latency: float | None = 2.0
    parked_polls = 1_000
    ways_to_wake: tuple[tuple[str, bool], ...] = (("hint socket", True), ("file poll", False))

    def describe(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    @contextmanager
    def ledger(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
            url = f"sqlite:///{Path(folder) / 'ledger.sqlite3'}"
            upgrade(parse_url(url))
            yield url

    def raw_submits_per_sec(self, url: str, callers: int, seconds: float) -> float:
        return raw_sqlite.submits_per_sec(_path(url).parent, callers, seconds)

    def multiply(self, url: str, times: int) -> None:
        copies.multiply_sqlite(_path(url), times)

    def size_bytes(self, url: str) -> int:
        return _path(url).stat().st_size

    def holding(self, url: str, processes: Sequence[Process]) -> int:
        return sum(open_files(process, _path(url)) for process in processes)

    def cpu_sec(self) -> float | None:
        return None


class OwnServer:
    """PostgreSQL."""

    name = POSTGRESQL
    title = "PostgreSQL"
    durability = "PostgreSQL by a Unix socket, fsync=on, synchronous_commit=on"
    held = "connections to the database"
    raw = "asyncpg alone, with BEGIN, one SELECT, INSERT and UPSERT by unnest, COMMIT, each a trip"
    least_over_raw = 0.4
    least_busy_over_idle = 0.1
    least_replayed = 150_000
    most_lone_latency: float | None = None
    parked_polls = 5_000
    ways_to_wake: tuple[tuple[str, bool], ...] = (("LISTEN and NOTIFY", False),)

    def __init__(self, server: PrivateServer) -> None:
        self._server = server

    def describe(self) -> str:
        return f"PostgreSQL {execute(self._server.url(), 'SHOW server_version')[0][0]}"

    @contextmanager
    def ledger(self) -> Iterator[str]:
        name = f"bench_{uuid.uuid4().hex}"
        execute(self._server.url(), f"CREATE DATABASE {name} TEMPLATE template0")
        url = self._server.url(name)
        upgrade(parse_url(url))
        try:
            yield url
        finally:
            # A worker of autovacuum may be in it, which only a superuser may end.
            execute(self._server.superuser_url(), f"DROP DATABASE {name} WITH (FORCE)")

    def raw_submits_per_sec(self, url: str, callers: int, seconds: float) -> float:
        return asyncio.run(raw_postgres.submits_per_sec(url, callers, seconds))

    def multiply(self, url: str, times: int) -> None:
        asyncio.run(copies.multiply_postgres(url, times))
        execute(self._server.superuser_url(), "CHECKPOINT")

    def size_bytes(self, url: str) -> int:
        return int(execute(url, "SELECT pg_database_size(current_database())")[0][0])

    def holding(self, url: str, processes: Sequence[Process]) -> int:
        text = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(execute(url, text)[0][0])

    def cpu_sec(self) -> float | None:
        return whole_cpu_sec(self._server.pid)


@contextmanager
def place(name: str) -> Iterator[Place]:
    """The place of that name; a server runs for the block."""
    if name == SQLITE:
        yield Files()
        return
    os.environ.setdefault(KEY_VARIABLE, new_key())  # the processes that are measured inherit it
    with private_server(**_SETTINGS) as server:
        yield OwnServer(server)


def _path(url: str) -> Path:
    return Path(make_url(url).database or "")
