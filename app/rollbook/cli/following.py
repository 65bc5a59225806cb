"""`rollbook events`: the events as they lie in the ledger, and as they arrive."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
import typer

from rollbook.ledger.listing import event_view
from rollbook.ledger.reader import StoredEvent
from rollbook.ledger.refusals import LedgerUnavailable, RolloutArchived, UnknownRollout
from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook_client.events import EVENT_TYPES

from . import options, output
from .eventlines import EventLines
from .outage import Outage
from .session import Interrupts, ReadSession, interruptible, read_session

PAGE = 500
LOOK_EVERY_MS = 100
RETRY_EVERY_MS = 500
"""How often to look whether an outage is over."""


class Choice(msgspec.Struct, frozen=True):
    """Which events to print. ``after`` is a position, or with a rollout's id a seq; so is what a page ends with."""

    rollout_id: str | None
    types: tuple[str, ...]
    after: int
    tail: int | None
    limit: int | None
    follow: bool


def events(
    rollout_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only this rollout's events.", show_default=False)
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with events as they arrive.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only so many of the last events; 0 with --follow: only new ones.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only events of this type; may be repeated.", metavar="TYPE", show_default=False),
    ] = None,
    after: Annotated[
        int, typer.Option(min=0, help="Only events after this position (with an ID: after this seq).")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="How many events to print.")] = None,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Print events in the ledger's order, from the first one on; with --json one object on each line."""
    for name in kind or ():
        if name not in EVENT_TYPES:
            raise typer.BadParameter(f"{name!r} is none; there are {', '.join(EVENT_TYPES)}", param_hint="--type")
    choice = Choice(rollout_id, tuple(kind or ()), after, tail, limit, follow)
    write = _write_json if json else _line_writer(rollout_id)
    with read_session(database_url) as session, interruptible() as interrupts:
        if rollout_id is not None:
            _find(session, interrupts, rollout_id)
        for page in _pages(session, interrupts, choice):
            write(page)


def _find(session: ReadSession, interrupts: Interrupts, rollout_id: str) -> None:
    """Raises:
    UnknownRollout: there is no such rollout, or its events are archived.
    """
    state = interrupts.run(session, session.reader.state(rollout_id))
    if state is None:
        raise UnknownRollout(rollout_id)
    archived = interrupts.run(session, session.reader.archived(state.number))
    if archived is not None:
        raise RolloutArchived(rollout_id, str(archived))


def _pages(session: ReadSession, interrupts: Interrupts, choice: Choice) -> Iterator[list[StoredEvent]]:
    """Pages of events; with ``follow`` without end, waiting for each next one, and for the end of an outage."""
    outage = Outage("following")
    reader, rollout_id, types = session.reader, choice.rollout_id, choice.types
    after, left = choice.after, choice.limit
    if choice.tail is not None:
        start = interrupts.run(session, reader.before_last_events(choice.tail, rollout_id=rollout_id, types=types))
        after = max(after, start)
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        try:
            seen = interrupts.run(session, reader.last_position()) if choice.follow else 0
            read = reader.events_page(after=after, rollout_id=rollout_id, types=types, limit=size)
            page = interrupts.run(session, read)
            outage.over()
            if choice.follow and not page:
                _wait_for_change(session, interrupts, seen)
        except LedgerUnavailable as error:
            if not choice.follow:
                raise
            outage.met(error)
            _pause(RETRY_EVERY_MS)
            continue
        if page:
            after = page[-1].position if rollout_id is None else page[-1].seq
            left = None if left is None else left - len(page)
            yield page
        elif not choice.follow:
            return
        elif rollout_id is None:
            after = max(after, seen)  # what was passed over for its type is not looked at again


def _wait_for_change(session: ReadSession, interrupts: Interrupts, position: int) -> None:
    """Return once the ledger has gone past ``position``.

    Raises:
        OutputClosed: from `_pause`.
        LedgerUnavailable: the ledger cannot be read now.
    """
    while interrupts.run(session, session.reader.last_position()) == position:
        _pause(LOOK_EVERY_MS)


def _pause(milliseconds: int) -> None:
    """Raises:
    OutputClosed: nobody reads our output any more, which no write would tell while there is nothing to write.
    """
    closed = select.poll()
    closed.register(sys.stdout.fileno(), 0)
    if any(state & (select.POLLERR | select.POLLHUP) for _, state in closed.poll(milliseconds)):
        raise output.OutputClosed


def _write_json(page: list[StoredEvent]) -> None:
    output.put_bytes(b"".join(output.json_line(event_view(event)) for event in page))


def _line_writer(rollout_id: str | None) -> Callable[[list[StoredEvent]], None]:
    lines = EventLines(with_ids=rollout_id is None)
    return lambda page: output.put("".join(f"{line}\n" for line in lines.of(page)))
