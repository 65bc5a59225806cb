"""Rollouts that may be scored once more: which there are, the trace that each left, and the scores of each scoring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from rollbook_client.events import TraceSaved
from rollbook_projections.views import view_sql

from . import codec
from . import statements as sql
from .commands import LaterScore
from .listing import ACTIVE, REWARD
from .reader import Reader

PAGE = 500

_SELECT = (
    f"SELECT r.number, r.rollout_id, ({ACTIVE}),"
    " EXISTS (SELECT 1 FROM archived_rollouts s WHERE s.number = r.number),"
    " (SELECT max(t.position) FROM traces t WHERE t.number = r.number AND t.attempt = r.attempt),"
    f" {REWARD}"
    " FROM rollouts r"
)
# As with `REWARD`: what a rollout that failed was given until then is no reward of it.
_SCORES = (
    "SELECT s.kind, s.name, s.weight,"
    " CASE WHEN s.kind = 'metric' OR s.scoring > 0 OR r.status = 'success' THEN s.value END"
    " FROM scores s JOIN rollouts r ON r.number = s.number AND r.attempt = s.attempt"
    " WHERE s.number = ? AND s.scoring = ? ORDER BY s.position"
)
_TRACE = "SELECT type, version, payload FROM events WHERE position = ?"


class Scorable(msgspec.Struct, frozen=True, gc=False):
    """A rollout as a later scoring finds it.

    ``active``: it is not over, or cleans up. ``trace`` is where its last attempt's trace is saved, None where that left
    none. ``reward`` is the sum as it stands.
    """

    number: int
    rollout_id: str
    active: bool
    archived: bool
    trace: int | None
    reward: float | None


async def named(reader: Reader, rollout_ids: Sequence[str]) -> AsyncIterator[Scorable | str]:
    """The rollouts of these ids, in their order; the id itself where no rollout has it.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    for rollout_id in dict.fromkeys(rollout_ids):
        found = await _page(reader, "r.rollout_id = ?", (rollout_id,)) if sql.storable(rollout_id) else []
        yield found[0] if found else rollout_id


async def selected(
    reader: Reader, *, prefix: str | None = None, queue: str | None = None, label_prefix: str | None = None
) -> AsyncIterator[Scorable]:
    """The rollouts that fit, the oldest first; those that are admitted meanwhile are none of them.

    ``label_prefix`` is what their labels begin with, compared bytewise.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    if not all(sql.storable(text) for text in (prefix, queue, label_prefix) if text is not None):
        return
    condition, bounds = sql.prefix_range(prefix, column="r.rollout_id")
    chosen: list[Any] = list(bounds)
    if queue is not None:
        condition += " AND r.queue = ?"
        chosen.append(queue)
    if label_prefix is not None:
        condition += " AND EXISTS (SELECT 1 FROM admissions a WHERE a.number = r.number AND substr(a.label, 1, ?) = ?)"
        chosen += [len(label_prefix), label_prefix]
    ((last,),) = await reader.query("SELECT coalesce(max(number), 0) FROM rollouts")
    after = 0
    while True:
        text = f"r.number > ? AND r.number <= ?{condition} ORDER BY r.number LIMIT {PAGE}"
        page = await _page(reader, text, (after, last, *chosen))
        for found in page:
            yield found
        if len(page) < PAGE:
            return
        after = page[-1].number


async def scores_of(reader: Reader, number: int, *, scoring: int) -> tuple[LaterScore, ...]:
    """What a scoring of a rollout counts for, in the order of its recording; the rewards that a failed rollout was
    given while it ran count for nothing and are null.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    rows = await reader.query(_SCORES, (number, scoring))
    return tuple(
        LaterScore(name, value, None if kind == "metric" else 1.0 if weight is None else weight)
        for kind, name, weight, value in rows
    )


async def saved_trace(reader: Reader, position: int) -> TraceSaved | None:
    """The event that holds a trace; None where it is not in the ledger any more.

    Raises:
        CodecError: it is damaged.
        LedgerUnavailable: the ledger cannot be read.
    """
    rows = await reader.long_query(_TRACE, (position,))
    event = codec.decode(*rows[0]) if rows else None
    return event if isinstance(event, TraceSaved) else None


async def _page(reader: Reader, condition: str, parameters: tuple[Any, ...]) -> list[Scorable]:
    text = view_sql(_SELECT, reader.backend)
    rows = await reader.long_query(f"{text} WHERE {condition}", parameters)
    return [Scorable(row[0], row[1], bool(row[2]), bool(row[3]), row[4], row[5]) for row in rows]
