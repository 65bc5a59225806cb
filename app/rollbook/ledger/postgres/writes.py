"""What a transaction writes, as one statement for PostgreSQL: data-modifying parts over arrays of columns.

Only the tables that get rows are named, so there are a few dozen statements, each planned once for a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.ledger.statements import FIXED_COLUMNS, STATE_COLUMNS
from rollbook.ledger.transaction import Transaction
from rollbook_projections import tables

_TYPES: dict[type, str] = {
    sa.BigInteger: "bigint",
    sa.Integer: "integer",
    sa.Text: "text",
    sa.LargeBinary: "bytea",
    sa.Double: "double precision",
}
_UPSERTS = {
    "rollouts": ("number", tuple(name for name in STATE_COLUMNS if name not in FIXED_COLUMNS)),
    "queue_counts": ("queue", ("queued", "running")),
}
_TABLES = {
    str(table.name): table
    for table in (tables.events, tables.rollouts, tables.queue_counts, tables.secrets, *tables.HISTORY_TABLES)
}
_COLUMNS = {name: tuple(str(column.name) for column in table.columns) for name, table in _TABLES.items()}
assert _COLUMNS["rollouts"] == STATE_COLUMNS


def write_of(done: Transaction) -> tuple[str, list[Any]] | None:
    """The statement that writes everything the commands added, and its parameters; None where there is nothing."""
    if not done.event_rows:
        return None
    rows: dict[str, Sequence[tuple[Any, ...]]] = {
        "events": done.event_rows,
        "rollouts": [msgspec.structs.astuple(state) for state in done.changed.values()],
        **{table: history for table, history in done.history.items() if history},
    }
    sealed = [item for item in done.sealed.items() if item[0] not in done.opened]
    if sealed:
        rows["secrets"] = sealed
    if done.changed_queues:
        rows["queue_counts"] = [
            (queue, done.counts[queue].queued, done.counts[queue].running) for queue in done.changed_queues
        ]
    parameters: list[Any] = [done.head.position, done.head.number, done.head.events]
    for part in rows.values():
        parameters.extend(zip(*part, strict=True))
    if done.opened:
        parameters.append(list(done.opened))
    return _statement(tuple(rows), opens=bool(done.opened)), parameters


@lru_cache(maxsize=4096)
def _statement(names: tuple[str, ...], *, opens: bool) -> str:
    parts: list[str] = []
    mark = 4
    for name in names:
        columns = _COLUMNS[name]
        arrays = ", ".join(
            f"${mark + index}::{_type(_TABLES[name].c[column])}[]" for index, column in enumerate(columns)
        )
        mark += len(columns)
        upsert = _UPSERTS.get(name)
        suffix = "" if upsert is None else f" ON CONFLICT ({upsert[0]}) DO UPDATE SET {_assignments(upsert[1])}"
        parts.append(f"w_{name} AS (INSERT INTO {name} ({', '.join(columns)}) SELECT * FROM unnest({arrays}){suffix})")
    if opens:
        parts.append(f"w_opened AS (DELETE FROM secrets WHERE number = ANY(${mark}::bigint[]))")
    return (
        f"WITH {', '.join(parts)} UPDATE ledger_head"
        " SET position = $1::bigint, number = $2::bigint, events = $3::bigint WHERE id = 1"
    )


def _assignments(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


def _type(column: sa.Column[Any]) -> str:
    return next(name for kind, name in _TYPES.items() if isinstance(column.type, kind))
