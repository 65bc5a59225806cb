"""The files of an SQLite ledger, and with which settings they are opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

WAL_AUTOCHECKPOINT_PAGES = 4_000
JOURNAL_LIMIT_BYTES = 64 * 1024 * 1024
LONG_READS = 4
"""How many long reads of a process run at once; more wait for their turn."""
LONG_READ_WAIT_SEC = 15.0


def database_path(url: sa.URL) -> Path:
    """The file of an SQLite ledger."""
    return Path(url.database or "").absolute()


def lock_path(url: sa.URL) -> Path:
    """The file whose lock orders the writing processes."""
    path = database_path(url)
    return path.with_name(path.name + ".lock")


def key_path(url: sa.URL) -> Path:
    """Where an SQLite ledger's secret key lies."""
    return database_path(url).with_name("secret.key")


def writer_engine(url: sa.URL, *, busy_timeout_sec: float) -> sa.Engine:
    """One connection that commits durably; transactions are begun and ended by hand (`BEGIN IMMEDIATE`).

    The file lock orders Rollbook's own writers. SQLite's busy timeout is for what does not know of that lock: a shell,
    a backup, a connection that recovers the log after a crash.
    """
    engine = sa.create_engine(
        url,
        poolclass=sa.pool.NullPool,
        connect_args={
            "check_same_thread": False,
            "isolation_level": None,
            "cached_statements": 256,
            "timeout": busy_timeout_sec,
        },
    )

    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_AUTOCHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit={JOURNAL_LIMIT_BYTES}")

    sa.event.listen(engine, "connect", configure)
    return engine


def _read_only(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only=1")
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.close()


def reader_engine(url: sa.URL) -> sa.Engine:
    """Short reads from the thread that asks."""
    engine = sa.create_engine(
        url,
        poolclass=sa.pool.NullPool,
        connect_args={"check_same_thread": False, "isolation_level": None, "cached_statements": 256},
    )
    sa.event.listen(engine, "connect", _read_only)
    return engine


def async_reader_engine(url: sa.URL) -> AsyncEngine:
    """Operators' long reads, off the loop."""
    # Imported here: it is a fifth of a process's start, and most processes never read long.
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        url.set(drivername="sqlite+aiosqlite"),
        pool_size=LONG_READS // 2,
        max_overflow=LONG_READS - LONG_READS // 2,
        pool_timeout=LONG_READ_WAIT_SEC,
    )
    sa.event.listen(engine.sync_engine, "connect", _read_only)
    return engine
