"""Very many finished rollouts, as copies of those that a ledger has: by SQL, with new numbers, ids and positions.

The copies' hashes do not chain; nothing that a server does with finished rollouts looks at them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import asyncpg

_OTHERS = ("ledger_head", "secrets")
"""Tables with rollout numbers that hold nothing of a finished rollout."""


def multiply_sqlite(path: Path, times: int) -> None:
    """Copy a ledger's finished rollouts ``times`` times.

    Tables are read in the order of their keys (`NOT INDEXED`): events may only be added at the end.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        position, number, events = db.execute("SELECT position, number, events FROM ledger_head").fetchone()
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            if "number" not in columns or table in _OTHERS:
                continue
            values = _values(columns, position=position, number=number, new_id="lower(hex(randomblob(16)))")
            db.execute("BEGIN")
            db.execute(
                f"WITH RECURSIVE copy(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copy WHERE k < {times})"
                f" INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {values} FROM copy CROSS JOIN {table} old NOT INDEXED WHERE old.number <= {number}"
            )
            db.execute("COMMIT")
        db.execute(
            "UPDATE ledger_head SET position = ?, number = ?, events = ?",
            (position * (times + 1), number * (times + 1), events * (times + 1)),
        )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def multiply_postgres(url: str, times: int) -> None:
    """Copy a ledger's finished rollouts ``times`` times, and let the planner know them."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET synchronous_commit = off")
        position, number, events = await connection.fetchrow("SELECT position, number, events FROM ledger_head")
        names = (
            "SELECT table_name FROM information_schema.columns WHERE column_name = 'number' AND is_updatable = 'YES'"
        )
        shown = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped"
        for (table,) in await connection.fetch(
            f"SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename IN ({names})"
        ):
            if table in _OTHERS:
                continue
            columns = [row[0] for row in await connection.fetch(shown, table)]
            new_id = "replace(gen_random_uuid()::text, '-', '')"
            values = _values(columns, position=position, number=number, new_id=new_id)
            await connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {values} FROM generate_series(1, {times}) copy(k) CROSS JOIN {table} old"
            )
        await connection.execute(
            "UPDATE ledger_head SET position = $1, number = $2, events = $3",
            *(value * (times + 1) for value in (position, number, events)),
        )
        # As autovacuum would have by the time that a ledger has grown so long.
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


def _values(columns: Iterable[str], *, position: int, number: int, new_id: str) -> str:
    """The columns of a copy, as SQL over the old row and the copy's ordinal k."""
    return ", ".join(_value(column, position=position, number=number, new_id=new_id) for column in columns)


def _value(column: str, *, position: int, number: int, new_id: str) -> str:
    if column == "number":
        return f"old.number + k * {number}"
    if column == "rollout_id":
        return new_id
    if column in ("position", "request_position", "result_position"):
        return f"old.{column} + k * {position}"
    return f"old.{column}"
