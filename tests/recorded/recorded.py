"""Ledgers that are recorded: commands with their times, one batch on a line, given to a real store.

A line of the JSON says when (UTC) and what: names of commands with their arguments. Times of spans are told as
durations that follow one another and end with the line's time, other times in events as seconds from it. What a line
leaves out is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rollbook.ledger import commands as cmd
from rollbook_client.events import EVENT_TYPES, Event, StageSpan
from tests.support import ledger as make
from tests.support.ledger import SECOND_US, Clock, writing

TWO_NIGHTS = Path(__file__).with_name("two_nights.jsonl")
"""Two nights of three queues, from 2026-03-01 20:00 to 2026-03-03 08:00: most of what can happen to a rollout."""

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
_DEAD_AFTER_US = 15 * SECOND_US


def microseconds(text: str) -> int:
    """An ISO 8601 time as the ledger counts it."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def record(path: Path, database_url: str) -> None:
    """Write a recorded ledger into a database that has none yet. Nothing in it may be refused."""
    clock = Clock()
    with path.open(encoding="utf-8") as lines, writing(database_url, clock) as writer:
        for line in map(json.loads, lines):
            clock.now = microseconds(line["at"])
            answers = writer.batch(*(_COMMANDS[name](clock.now, **told) for name, told in line["do"]))
            refused = [answer for answer in answers if isinstance(answer, Exception)]
            assert not refused, f"{line}: {refused}"


def _register(now: int, *, member_id: str, kind: Any = "scheduler", queues: tuple[str, ...] = ()) -> cmd.Register:
    return cmd.Register(
        member_id=member_id,
        kind=kind,
        host=f"host-of-{member_id}",
        pid=1,
        dead_after_us=_DEAD_AFTER_US,
        entrypoint="flow.py" if queues else None,
        queues=tuple(queues),
        capacity=2 * len(queues),
    )


def _admit(now: int, *, lease_sec: float = 7200, timeout_sec: float | None = None, **told: Any) -> cmd.Admit:
    timeout_us = None if timeout_sec is None else int(timeout_sec * SECOND_US)
    return make.admit(lease_timeout_us=int(lease_sec * SECOND_US), agent_timeout_us=timeout_us, **told)


def _finish(
    now: int,
    *,
    spans: list[tuple[str, float]],
    rewards: dict[str, float | None] | None = None,
    metrics: dict[str, float | None] | None = None,
    **told: Any,
) -> cmd.FinishAttempt:
    if told.get("status", "success") != "success":
        told["sample"] = None
    return make.finish(
        spans=_placed(now, spans),
        rewards=tuple(cmd.Score(*item) for item in (rewards or {}).items()),
        metrics=tuple(cmd.Score(*item) for item in (metrics or {}).items()),
        **told,
    )


def _placed(now: int, spans: list[tuple[str, float]]) -> tuple[StageSpan, ...]:
    placed: list[StageSpan] = []
    end = now
    for stage, seconds in reversed(spans):
        start = end - round(seconds * SECOND_US)
        placed.append(StageSpan(stage, start, end))
        end = start
    return tuple(reversed(placed))


def _record(now: int, *, events: list[tuple[str, dict[str, Any]]], **told: Any) -> cmd.Record:
    return cmd.Record(**told, events=tuple(_event(now, kind, fields) for kind, fields in events))


def _event(now: int, kind: str, fields: dict[str, Any]) -> Event:
    fields = {
        name: now + round(value * SECOND_US) if name.endswith("_at") and value is not None else value
        for name, value in fields.items()
    }
    if "spans" in fields:
        fields["spans"] = _placed(now, fields["spans"])
    return EVENT_TYPES[kind](attempt=0, **fields)


def _rescore(now: int, *, scores: dict[str, float | None], weights: dict[str, float], **told: Any) -> cmd.Rescore:
    return cmd.Rescore(scores=tuple(cmd.LaterScore(*item, weights.get(item[0])) for item in scores.items()), **told)


_COMMANDS: dict[str, Callable[..., cmd.Command[Any]]] = {
    "register": _register,
    "beat": lambda now, **told: cmd.Beat(**told),
    "leave": lambda now, **told: cmd.Leave(**told),
    "admit": _admit,
    "poll": lambda now, *, rollout_id: make.poll(rollout_id),
    "cancel": lambda now, **told: cmd.Cancel(**told),
    # One at a time: how many a scheduler may take at once is no affair of a record.
    "claim": lambda now, **told: cmd.Claim(limit=1, **told),
    "enter": lambda now, **told: make.enter(**told),
    "record": _record,
    "finish": _finish,
    "rescore": _rescore,
    "close": lambda now, **told: make.close(**told),
    "expire_leases": lambda now: cmd.ExpireLeases(),
    "expire_deadlines": lambda now: cmd.ExpireDeadlines(),
    "take_over": lambda now, **told: cmd.TakeOver(dead_after_us=_DEAD_AFTER_US, **told),
}
