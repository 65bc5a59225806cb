"""What a migrated database consists of, object by object, as the database itself tells it."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from rollbook.ledger.postgres.blocking import loop_thread
from rollbook.ledger.urls import SQLITE, parse_url
from tests.support.sql import shell

TABLES = "table", "column", "constraint", "index"
"""The kinds of objects that tables are made of; a text of SQLite's tells a table with its columns and constraints."""

_SQLITE = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'alembic_%'"
_OURS = "IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'alembic_%')"
_POSTGRES = f"""
    SELECT 'table', relname, concat_ws(' ', relpersistence, reloptions) FROM pg_class
    WHERE oid {_OURS} AND relkind = 'r'
    UNION ALL
    SELECT 'column', attrelid::regclass || '.' || attnum,
           concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                     (SELECT collname FROM pg_collation c WHERE c.oid = attcollation),
                     (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum))
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid AND c.relkind = 'r'
    WHERE attrelid {_OURS} AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid {_OURS}
    UNION ALL
    SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid {_OURS}
    UNION ALL
    SELECT 'view', relname, pg_get_viewdef(oid) FROM pg_class WHERE oid {_OURS} AND relkind = 'v'
    UNION ALL
    SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid {_OURS} AND NOT tgisinternal
    UNION ALL
    SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


def objects(database_url: str, *kinds: str) -> dict[tuple[str, str], str]:
    """Definitions by kind and name, those of the given kinds or all; what the migrating tool keeps for itself not."""
    text = _SQLITE if parse_url(database_url).get_backend_name() == SQLITE else _POSTGRES
    with shell(database_url) as connection:
        found = connection.rows(text)
    return {(kind, name): " ".join(says.split()) for kind, name, says in found if not kinds or kind in kinds}


def names(database_url: str, kind: str) -> set[str]:
    """The names of all objects of a kind."""
    return {name for _, name in objects(database_url, kind)}


def with_connection[Result](database_url: str, work: Callable[[sa.Connection], Result]) -> Result:
    """What some work with SQLAlchemy returns; it is committed."""
    url = parse_url(database_url)
    if url.get_backend_name() == SQLITE:
        engine = sa.create_engine(url)
        try:
            with engine.begin() as connection:
                return work(connection)
        finally:
            engine.dispose()

    async def on_the_loop() -> Result:
        driven = create_async_engine(url.set(drivername="postgresql+asyncpg"), poolclass=sa.NullPool)
        async with driven.begin() as connection:
            return await connection.run_sync(work)

    with loop_thread() as thread:
        return thread.run(on_the_loop())
