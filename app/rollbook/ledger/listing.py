"""Rollouts and events as operators read them: one shape for the command line's JSON and for HTTP.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rollbook_projections.views import view_sql

from . import statements as sql
from .reader import Reader, StoredEvent


class RolloutView(msgspec.Struct, frozen=True, gc=False):
    """A rollout's row with what it was asked and what it brought, without its lease's digest and its chain's head.

    ``active``: not over, or over with an attempt that still cleans up. ``reward`` is the weighted sum of the last
    attempt's rewards by its last scoring, null where there is none. ``label`` and ``err_message`` are at most 8 kB; the
    events keep them whole.
    """

    number: int
    rollout_id: str
    queue: str
    status: str
    active: bool
    attempt: int
    attempts_counted: int
    max_attempts: int
    scheduler: str | None
    admitted_at: int
    queued_at: int
    changed_at: int
    finished_at: int | None
    lease_expires_at: int
    cancel_requested_at: int | None
    agent_deadline_at: int | None
    label: str | None
    reward: float | None
    err_category: str | None
    err_message: str | None


class EventView(msgspec.Struct, frozen=True, gc=False):
    """An event with its envelope; ``payload`` is the stored JSON, exactly; ``hash`` is hex."""

    position: int
    number: int
    rollout_id: str
    seq: int
    type: str
    version: int
    recorded_at: int
    hash: str
    payload: msgspec.Raw


ACTIVE = "finished_at IS NULL OR scheduler IS NOT NULL"
"""A rollout that is not over, or cleans up."""
REWARD = (
    "(SELECT {summed:s} FROM scores s WHERE s.number = r.number AND s.kind = 'reward' AND s.attempt = r.attempt"
    " AND s.scoring = coalesce((SELECT max(v.scoring) FROM scorings v WHERE v.number = r.number), 0)"
    " AND (r.status = 'success' OR s.scoring > 0))"
)
"""The sum of what its last scoring gave, of the rollout `r`; for `view_sql`. A failed rollout's own scores count for
nothing."""
_ELSEWHERE = {"active": f"({ACTIVE})", "label": "a.label", "reward": REWARD, "err_message": "o.err_message"}
_FIELDS = tuple(field.name for field in msgspec.structs.fields(RolloutView))


@cache
def _columns(backend: str) -> str:
    return view_sql(", ".join(_ELSEWHERE.get(name, f"r.{name}") for name in _FIELDS), backend)


def _views(reader: Reader, selection: str) -> str:
    """The views of the rows of `rollouts` that a selection names, the newest first."""
    return (
        f"SELECT {_columns(reader.backend)} FROM (SELECT * FROM rollouts WHERE {selection}) r"
        " LEFT JOIN admissions a ON a.number = r.number LEFT JOIN outcomes o ON o.number = r.number"
        " ORDER BY r.number DESC"
    )


async def rollout_view(reader: Reader, number: int) -> RolloutView | None:
    """One rollout, by a short read; None if no rollout has this number.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    rows = await reader.query(_views(reader, "number = ?"), (number,))
    return _view(rows[0]) if rows else None


async def rollouts_page(
    reader: Reader,
    *,
    status: str | None = None,
    queue: str | None = None,
    prefix: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[RolloutView]:
    """Rollouts, the newest first; ``before`` is the last number of the page before.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    if not all(sql.storable(text) for text in (status, queue, prefix) if text is not None):
        return []
    condition, bounds = sql.prefix_range(prefix)
    parameters: list[Any] = list(bounds)
    for column, operator, value in (("status", "=", status), ("queue", "=", queue), ("number", "<", before)):
        if value is not None:
            condition += f" AND {column} {operator} ?"
            parameters.append(value)
    if status in ("queued", "running", "grading"):
        condition += " AND finished_at IS NULL"  # what lets the index of live rollouts serve
    text = _views(reader, f"1 = 1{condition} ORDER BY number DESC LIMIT ?")
    return [_view(row) for row in await reader.long_query(text, (*parameters, limit))]


def _view(row: tuple[Any, ...]) -> RolloutView:
    view = RolloutView(*row)
    return msgspec.structs.replace(view, active=bool(view.active))


def event_view(event: StoredEvent) -> EventView:
    """An event as it is shown."""
    return EventView(
        event.position,
        event.number,
        event.rollout_id,
        event.seq,
        event.type,
        event.version,
        event.recorded_at,
        event.hash.hex(),
        msgspec.Raw(event.payload),
    )
