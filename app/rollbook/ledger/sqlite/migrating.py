"""Which schema an SQLite file has, and how it is migrated."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable, SchemaError
from rollbook.ledger.schema import alembic_config

from .engines import database_path, lock_path
from .locks import FileLock

UPGRADE_LOCK_LIMIT_SEC = 60.0

_OURS = {"ledger_head", "rollouts"}
"""Tables that tell a ledger from another program's database."""


def revision(url: sa.URL) -> str | None:
    """The schema revision of the database; None where there is no ledger yet.

    Raises:
        SchemaError: it is a folder, or a file that is no SQLite database, or another program's.
        LedgerUnavailable: it exists and cannot be read.
    """
    path = database_path(url)
    if not path.exists():
        return None
    if path.is_dir():
        raise SchemaError(f"{path} is a folder; name a file in it with --database-url sqlite:///{path}/ledger.sqlite3")
    connection = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        row = None
        if "alembic_version" in tables:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError as error:
        raise LedgerUnavailable(f"cannot read {path}: {error}; check its permissions and its folder's") from error
    except sqlite3.DatabaseError as error:
        raise SchemaError(f"{path} is not an SQLite database; name another file with --database-url") from error
    finally:
        connection.close()
    if tables.isdisjoint(_OURS) and (row is not None or tables - {"alembic_version"}):
        # Migrating it would mix our tables with another program's.
        raise SchemaError(f"{path} is an SQLite database, but no ledger; name another file with --database-url")
    return None if row is None else str(row[0])


def migrate(url: sa.URL, to: str, *, down: bool) -> None:
    """Migrate in one transaction, one process at a time.

    Raises:
        LedgerUnavailable: the file cannot be made or written.
    """
    # Imported here: a process whose schema is current never pays for alembic.
    from alembic import command

    path = database_path(url)
    lock = FileLock(lock_path(url))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(UPGRADE_LOCK_LIMIT_SEC)
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args={"isolation_level": None})
        sa.event.listen(engine, "connect", _write_ahead)
        sa.event.listen(engine, "begin", _begin)
        try:
            with engine.begin() as connection:
                (command.downgrade if down else command.upgrade)(alembic_config(connection), to)
        finally:
            engine.dispose()
    except (OSError, sa.exc.DBAPIError) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        raise LedgerUnavailable(f"cannot migrate {path}: {cause}; check that its folder can be written") from error
    finally:
        lock.close()


def _write_ahead(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")


def _begin(connection: sa.Connection) -> None:
    # The driver's own transactions leave DDL outside; an explicit one makes a migration whole or absent.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
