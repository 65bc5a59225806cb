"""Which schema a PostgreSQL database has, and how it is migrated."""

from __future__ import annotations

import asyncpg
import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable, SchemaError
from rollbook.ledger.schema import alembic_config

from .blocking import blocking_connection, loop_thread
from .connecting import connect, describe, is_outage

MIGRATION_LOCK = 7_310_579_042_018_375_702
"""The advisory lock of migrations: a second one waits and then finds nothing to do."""
LOCK_WAIT_SEC = 10
"""How long a migration waits for a table that running processes use, before it gives up and leaves all as it was."""

# What extensions bring is nobody's.
_FOUND = """
    SELECT current_setting('server_encoding'),
           to_regclass('alembic_version') IS NOT NULL, to_regclass('ledger_head') IS NOT NULL,
           EXISTS (SELECT 1 FROM pg_class c
                   WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'p')
                     AND c.relname <> 'alembic_version'
                     AND NOT EXISTS (SELECT 1 FROM pg_depend d
                                     WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))
"""


def revision(url: sa.URL) -> str | None:
    """The schema revision of the database; None where there is no ledger yet.

    Raises:
        SchemaError: another program keeps its tables there, or it cannot hold all texts.
        LedgerUnavailable: it cannot be read.
    """
    with blocking_connection(url, doing="read") as connection:
        ((encoding, versioned, ours, tables),) = connection.rows(_FOUND)
        if encoding != "UTF8":
            raise SchemaError(
                f"the database {url.database} has the encoding {encoding}, which cannot hold all that agents say; "
                "create it with ENCODING 'UTF8' TEMPLATE template0"
            )
        rows = connection.rows("SELECT version_num FROM alembic_version") if versioned else []
        if not ours and (rows or tables):
            # Migrating it would mix our tables with another program's.
            raise SchemaError(
                f"the database {url.database} holds another program's tables; "
                "name one of Rollbook's own with --database-url"
            )
        return str(rows[0][0]) if rows else None


def migrate(url: sa.URL, to: str, *, down: bool) -> None:
    """Migrate in one transaction, one process at a time.

    Raises:
        LedgerUnavailable: the database cannot be written, or its tables are in use for too long.
    """
    from alembic import command
    from sqlalchemy.ext.asyncio import create_async_engine

    def run(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT_SEC}s'")
        (command.downgrade if down else command.upgrade)(alembic_config(connection), to)

    async def work() -> None:
        engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: connect(url), poolclass=sa.pool.NullPool
        )
        try:
            async with engine.begin() as connection:
                await connection.run_sync(run)
        finally:
            await engine.dispose()

    with loop_thread() as thread:
        try:
            thread.run(work())
        except (OSError, sa.exc.DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
            cause = cause.__cause__ or cause
            if not is_outage(cause):
                raise
            raise LedgerUnavailable(
                f"cannot migrate the database {url.database}: {describe(cause)}; nothing was changed, try again"
            ) from error
