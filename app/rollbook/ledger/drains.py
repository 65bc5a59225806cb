"""Closed admission: which queues take no rollouts, since when and by whom. SQL within the writer's transaction.

A drain is a fact that all processes share, and no part of any rollout's history. `ledger_head.draining` tells every
transaction at no cost whether there is any; only then is this table asked.
"""

from __future__ import annotations

from rollbook_projections import column_text

from .commands import CloseAdmission, OpenAdmission
from .refusals import Closure
from .statements import Steps

WHOLE_LEDGER = ""
"""Stands for all queues, those of later included."""

SELECT_CLOSURES = "SELECT queue, closed_at, closed_by FROM drains WHERE opened_at IS NULL ORDER BY queue"
_CLOSURE = (
    "SELECT queue, closed_at, closed_by FROM drains"
    " WHERE opened_at IS NULL AND (queue = ? OR queue = '') ORDER BY queue LIMIT 1"
)
_CLOSE = (
    "INSERT INTO drains (queue, closed_at, closed_by)"
    " SELECT CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS TEXT)"
    " WHERE NOT EXISTS (SELECT 1 FROM drains WHERE queue = ? AND opened_at IS NULL)"
    " ON CONFLICT (queue, closed_at) DO UPDATE SET opened_at = NULL, opened_by = NULL RETURNING 1"
)
_OPEN = "UPDATE drains SET opened_at = ?, opened_by = ? WHERE opened_at IS NULL AND (queue = ? OR ? = '') RETURNING 1"
_NOTE = (
    "UPDATE ledger_head SET draining ="
    " CASE WHEN EXISTS (SELECT 1 FROM drains WHERE opened_at IS NULL) THEN 1 ELSE 0 END WHERE id = 1 RETURNING draining"
)


def closure(queue: str) -> Steps[Closure | None]:
    """Why nothing is admitted to a queue; None where it is open."""
    rows = yield _CLOSURE, (queue,)
    return Closure(*rows[0]) if rows else None


def close(command: CloseAdmission, now: int) -> Steps[bool]:
    """Close admission; whether it was open."""
    rows = yield _CLOSE, (command.queue, now, column_text(command.by), command.queue)
    yield _NOTE, ()
    return bool(rows)


def reopen(command: OpenAdmission, now: int) -> Steps[int]:
    """Open admission; how many closures that ended."""
    rows = yield _OPEN, (now, column_text(command.by), command.queue, command.queue)
    yield _NOTE, ()
    return len(rows)
