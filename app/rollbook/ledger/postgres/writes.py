"""What a transaction writes, as one statement for PostgreSQL: data-modifying parts over arrays of columns.

Only the tables that get rows are named, so there are a few dozen statements, each planned once for a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
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
_TABLES = {
    str(table.name): table
    for table in (tables.events, tables.rollouts, tables.queue_counts, tables.secrets, *tables.HISTORY_TABLES)
}
_COLUMNS = {name: tuple(str(column.name) for column in table.columns) for name, table in _TABLES.items()}
assert _COLUMNS["rollouts"] == STATE_COLUMNS
_CHANGING = tuple(name for name in STATE_COLUMNS if name not in FIXED_COLUMNS)
_CHANGES = "changes of rollouts"
"""No table, but rows of `rollouts` that are there already: the columns that may change, by their number."""
_CHANGE_COLUMNS = ("number", *_CHANGING)
NEWEST_HEAD = "(SELECT *, ctid FROM ledger_head ORDER BY id DESC LIMIT 1)"
"""The one row, found from the end of its index. Every transaction leaves a version of it behind, and while a snapshot
stands (a backup, a replay) none can be removed: who looked for the row from the front would pass by all of them."""
_COUNTED = " ON CONFLICT (queue) DO UPDATE SET queued = excluded.queued, running = excluded.running"
_change = attrgetter(*_CHANGE_COLUMNS)


def write_of(done: Transaction) -> tuple[str, list[Any]] | None:
    """The statement that writes everything the commands added, and its parameters; None where there is nothing."""
    if not done.event_rows:
        return None
    rows: dict[str, Sequence[tuple[Any, ...]]] = {"events": done.event_rows}
    first: int = done.event_rows[0][0]
    admitted = [msgspec.structs.astuple(state) for state in done.changed.values() if state.request_position >= first]
    if admitted:
        rows["rollouts"] = admitted
    if len(admitted) < len(done.changed):
        rows[_CHANGES] = [_change(state) for state in done.changed.values() if state.request_position < first]
    rows |= {table: history for table, history in done.history.items() if history}
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
        table, columns = ("rollouts", _CHANGE_COLUMNS) if name == _CHANGES else (name, _COLUMNS[name])
        arrays = ", ".join(
            f"${mark + index}::{_type(_TABLES[table].c[column])}[]" for index, column in enumerate(columns)
        )
        mark += len(columns)
        if name == _CHANGES:
            assignments = ", ".join(f"{column} = new.{column}" for column in _CHANGING)
            parts.append(
                f"w_changes AS (UPDATE rollouts old SET {assignments}"
                f" FROM unnest({arrays}) AS new({', '.join(columns)}) WHERE old.number = new.number)"
            )
            continue
        suffix = _COUNTED if name == "queue_counts" else ""
        parts.append(f"w_{name} AS (INSERT INTO {name} ({', '.join(columns)}) SELECT * FROM unnest({arrays}){suffix})")
    if opens:
        parts.append(f"w_opened AS (DELETE FROM secrets WHERE number = ANY(${mark}::bigint[]))")
    return (
        f"WITH {', '.join(parts)} UPDATE ledger_head"
        " SET position = $1::bigint, number = $2::bigint, events = $3::bigint"
        f" WHERE ctid = (SELECT h.ctid FROM {NEWEST_HEAD} h)"
    )


def _type(column: sa.Column[Any]) -> str:
    return next(name for kind, name in _TYPES.items() if isinstance(column.type, kind))
