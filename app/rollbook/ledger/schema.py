"""Bringing a database to the schema this code works with, and saying plainly when it is not there."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import sqlalchemy as sa

import rollbook_migrations

from .engines import database_path, lock_path
from .locks import FileLock
from .refusals import LedgerUnavailable

UPGRADE_LOCK_LIMIT_SEC = 60.0

_OURS = {"ledger_head", "rollouts"}
"""Tables that tell a ledger from another program's database."""


class SchemaError(Exception):
    """The database's schema is not the one this code works with; the message names the fixing command."""


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


def check(url: sa.URL) -> None:
    """Raises:
    SchemaError: the schema is missing, old or newer than this code.
    LedgerUnavailable: the database cannot be read.
    """
    found = revision(url)
    if found == rollbook_migrations.HEAD:
        return
    if found is None:
        raise SchemaError(f"there is no ledger at {database_path(url)}; make one with `rollbook db upgrade`")
    raise SchemaError(
        f"the ledger's schema is {found}, this Rollbook works with {rollbook_migrations.HEAD}; "
        "run `rollbook db upgrade` (or install the Rollbook that wrote it, if it is newer)"
    )


def upgrade(url: sa.URL, to: str = "head") -> None:
    """Migrate up to ``to`` in one transaction; harmless where nothing is to do, or when two processes try at once.

    Raises:
        LedgerUnavailable: the file cannot be made or written.
    """
    if to == "head" and revision(url) == rollbook_migrations.HEAD:
        return
    _migrate(url, to, down=False)


def downgrade(url: sa.URL, to: str) -> None:
    """Migrate down to ``to`` (``base`` removes everything)."""
    _migrate(url, to, down=True)


def _migrate(url: sa.URL, to: str, *, down: bool) -> None:
    # Imported here: a process whose schema is current never pays for alembic.
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)  # a step a line is nothing for a server's log
    path = database_path(url)
    lock = FileLock(lock_path(url))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(UPGRADE_LOCK_LIMIT_SEC)
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args={"isolation_level": None})
        sa.event.listen(engine, "connect", _write_ahead)
        sa.event.listen(engine, "begin", _begin)
        config = Config()
        config.set_main_option("script_location", str(Path(rollbook_migrations.__file__).parent).replace("%", "%%"))
        try:
            with engine.begin() as connection:
                config.attributes["connection"] = connection
                (command.downgrade if down else command.upgrade)(config, to)
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
