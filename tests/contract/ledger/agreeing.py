"""What two ledgers must have alike when they were given the same commands at the same times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rollbook.ledger.database import database_of
from rollbook.ledger.listing import rollouts_page
from rollbook.ledger.reader import Reader
from rollbook.ledger.urls import parse_url
from rollbook_projections.tables import metadata
from tests.support.sql import shell

type Read = Callable[[Reader], Awaitable[Any]]

QUEUES = ("default", "other", "Ä")
SCHEDULERS = ("s-1", "s-2", "S-1")
STRANGE = ("", "nul\0", "\ud800", "\U0010ffff", "%", "r_1", "' OR 1 = 1 --")
"""Texts that somebody may look for, though nothing is called so."""


def reads(now: int) -> dict[str, Read]:
    """Everything that a process asks its ledger, by a name for it."""
    return {
        "counts": lambda reader: reader.counts(),
        "closures": lambda reader: reader.closures(),
        "last position": lambda reader: reader.last_position(),
        "changes": lambda reader: reader.news_after(3, 50),
        "news": lambda reader: reader.news_after(3, 50),
        "due": lambda reader: reader.sweep_due(now),
        "stale": lambda reader: reader.stale_schedulers(now),
        "apis": lambda reader: in_any_order(reader.members("api", 0)),
        "schedulers": lambda reader: in_any_order(reader.members("scheduler", 0)),
        "states": lambda reader: in_any_order(reader.states(range(300))),
        "page": page(limit=3),
        "next page": page(before=4, limit=3),
        "events": events(after=2, limit=100),
        "events of types": events(types=("rollout_finished", "attempt_ended")),
        "before the last events": lambda reader: reader.before_last_events(5),
        **{f"owned by {name}": owned(name) for name in SCHEDULERS},
        **{f"status {name}": page(status=name) for name in ("queued", "running", "success", "failure", "cancelled")},
        **{f"prefix {text!r}": page(prefix=text) for text in ("r", "run/", "R", "é", "a", *STRANGE)},
        **{f"queue {text!r}": page(queue=text) for text in (*QUEUES, *STRANGE)},
        **{f"state {text!r}": state(text) for text in ("r-1", "R-1", "é", "run/1", *STRANGE)},
        **{f"events of {text!r}": events(rollout_id=text) for text in ("r-1", "é", *STRANGE)},
    }


def page(**chosen: Any) -> Read:
    return lambda reader: rollouts_page(reader, **chosen)


def events(**chosen: Any) -> Read:
    return lambda reader: reader.events_page(**chosen)


def owned(scheduler: str) -> Read:
    return lambda reader: in_any_order(reader.owned_by(scheduler))


def state(rollout_id: str) -> Read:
    return lambda reader: reader.state(rollout_id)


async def in_any_order(found: Awaitable[list[Any]]) -> list[Any]:
    """What is promised in no order, in one that is no database's own."""
    return sorted(await found, key=repr)


async def answers_of(database_url: str, now: int) -> dict[str, Any]:
    """The answers to all reads."""
    reader = Reader(database_of(parse_url(database_url)))
    try:
        return {name: await read(reader) for name, read in reads(now).items()}
    finally:
        await reader.close()


def rows_of(database_url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, in an order that is no database's own."""
    with shell(database_url) as connection:
        return {
            table.name: sorted(
                connection.rows(f"SELECT {', '.join(column.name for column in table.columns)} FROM {table.name}"),
                key=repr,
            )
            for table in metadata.sorted_tables
        }
