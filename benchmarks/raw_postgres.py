"""What asyncpg alone does with the ledger's rows: the same events and rollouts, without decider, hashes or lock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import asyncpg

type Row = tuple[Any, ...]
type Columns = dict[str, str]
"""Names and types."""
type Batch = tuple[list[Row], list[Row]]

_SCHEMA = "raw"


async def submits_per_sec(url: str, callers: int, seconds: float) -> float:
    """Write the lease renewals of the ledger again, one event a submit and as many a batch as there are callers."""
    connection = await asyncpg.connect(url)
    try:
        events_columns = await _columns(connection, "events")
        rollouts_columns = await _columns(connection, "rollouts")
        rollouts = {row[0]: row for row in await _rows(connection, "rollouts", rollouts_columns)}
        events = await _rows(connection, "events", events_columns, "WHERE type = 'lease_renewed' ORDER BY position")
        batches = list(_batches(events, rollouts, callers))
        writer = _Writer(connection, events_columns, rollouts_columns)
        written, spent = 0, 0.0
        while spent < seconds:  # the same rows again, into empty tables, until there is enough to measure
            await _make_tables(connection)
            start = time.perf_counter()
            for batch in batches:
                await writer.write(batch)
                written += len(batch[0])
                if spent + time.perf_counter() - start >= seconds:
                    break
            spent += time.perf_counter() - start
        return written / spent
    finally:
        await connection.close()


async def _columns(connection: Any, table: str) -> Columns:
    text = (
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return dict(await connection.fetch(text, table))


async def _rows(connection: Any, table: str, columns: Columns, rest: str = "") -> list[Row]:
    return [tuple(row) for row in await connection.fetch(f"SELECT {', '.join(columns)} FROM {table} {rest}")]


def _batches(events: list[Row], rollouts: dict[int, Row], size: int) -> Iterator[Batch]:
    for start in range(0, len(events) - size + 1, size):
        part = events[start : start + size]
        yield part, [rollouts[number] for number in dict.fromkeys(event[1] for event in part)]


async def _make_tables(connection: Any) -> None:
    """The ledger's tables with their keys, and without triggers and other indexes."""
    await connection.execute(
        f"""
        DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE;
        CREATE SCHEMA {_SCHEMA};
        CREATE TABLE {_SCHEMA}.events (LIKE events);
        ALTER TABLE {_SCHEMA}.events ADD PRIMARY KEY (position), ADD UNIQUE (number, seq);
        CREATE TABLE {_SCHEMA}.rollouts (LIKE rollouts) WITH (fillfactor = 85);
        ALTER TABLE {_SCHEMA}.rollouts ADD PRIMARY KEY (number), ADD UNIQUE (rollout_id);
        """
    )


class _Writer:
    """The write-set of a batch."""

    def __init__(self, connection: Any, events: Columns, rollouts: Columns) -> None:
        self._connection = connection
        names = list(rollouts)
        assignments = ", ".join(f"{name} = excluded.{name}" for name in names[2:])
        self._select = f"SELECT {', '.join(names)} FROM {_SCHEMA}.rollouts WHERE number = ANY($1::bigint[])"
        self._insert = _insert("events", events)
        self._upsert = f"{_insert('rollouts', rollouts)} ON CONFLICT ({names[0]}) DO UPDATE SET {assignments}"

    async def write(self, batch: Batch) -> None:
        """One transaction of five trips."""
        events, rollouts = batch
        connection = self._connection
        await connection.execute("BEGIN")
        await connection.fetch(self._select, [row[0] for row in rollouts])
        await connection.execute(self._insert, *map(list, zip(*events, strict=True)))
        await connection.execute(self._upsert, *map(list, zip(*rollouts, strict=True)))
        await connection.execute("COMMIT")


def _insert(table: str, columns: Columns) -> str:
    arrays = ", ".join(f"${mark}::{kind}[]" for mark, kind in enumerate(columns.values(), 1))
    return f"INSERT INTO {_SCHEMA}.{table} ({', '.join(columns)}) SELECT * FROM unnest({arrays})"
