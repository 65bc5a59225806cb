"""Ways in which a database stops taking writes, each with its end: at the seams below the ledger, never inside it."""

from __future__ import annotations

import fcntl
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

NOBODY = 65_534


@contextmanager
def disk_full(database: Path) -> Iterator[None]:
    """The log of the database may not grow, and no other file of this process past its size: as on a full disk, writes
    fail in the operating system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = database.with_name(database.name + "-wal")
    limit = log.stat().st_size if log.exists() else database.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def pages_limited(database: Path) -> Iterator[None]:
    """Connections opened meanwhile hold the database full: SQLite itself says so."""

    def limit(connection: sqlite3.Connection, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA max_page_count = 1")

    sa.event.listen(sa.pool.Pool, "connect", limit)
    try:
        yield
    finally:
        sa.event.remove(sa.pool.Pool, "connect", limit)


@contextmanager
def read_only(database: Path) -> Iterator[None]:
    """The database's folder and files lose their write permission; the administrator's rights go too, where held."""
    paths = [database.parent, *database.parent.iterdir()]
    modes = {path: path.stat().st_mode for path in paths}
    user = os.geteuid()
    for path in paths:
        path.chmod(modes[path] & ~0o222 | 0o444)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def locked_by_transaction(database: Path) -> Iterator[None]:
    """A connection that knows nothing of Rollbook's lock file holds the write lock, as a shell may."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


_HOLDER = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def locked_by_process(database: Path) -> Iterator[None]:
    """Another process holds the lock file, as a writer that is stopped in the middle does."""
    path = database.with_name(database.name + ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.communicate()


@contextmanager
def commits(act: Callable[[sqlite3.Connection], None]) -> Iterator[None]:
    """Connections of engines made meanwhile run ``act`` in place of COMMIT; it commits or does not, and may raise."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql == "COMMIT":
                act(self)
                return super().execute("SELECT 1")
            return super().execute(sql, parameters)

    def connect(dialect: Any, record: object, arguments: list[Any], options: dict[str, Any]) -> None:
        options["factory"] = Connection

    sa.event.listen(sa.Engine, "do_connect", connect)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "do_connect", connect)


def commit(connection: sqlite3.Connection) -> None:
    """What `COMMIT` does, from inside `commits`."""
    sqlite3.Connection.execute(connection, "COMMIT")


def rollback(connection: sqlite3.Connection) -> None:
    """Give the transaction up, from inside `commits`."""
    sqlite3.Connection.execute(connection, "ROLLBACK")


def is_locked(database: Path) -> bool:
    """Whether somebody holds the lock file now."""
    with database.with_name(database.name + ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
