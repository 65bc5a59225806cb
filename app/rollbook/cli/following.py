"""`rollbook events`: the events as they lie in the ledger, and as they arrive."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from rollbook.ledger import codec
from rollbook.ledger.engines import DEFAULT_DATABASE_URL
from rollbook.ledger.reader import StoredEvent
from rollbook.ledger.refusals import UnknownRollout

from . import options, output
from .session import Interrupts, ReadSession, interruptible, read_session

PAGE = 500
LOOK_EVERY_MS = 100
DETAIL_CHARACTERS = 200

_LONG_FIELDS = frozenset(
    {"request", "sample", "trajectory", "lease_nonce", "lease_digest", "endpoint_digest", "rollout_id"}
)


class ShownEvent(msgspec.Struct, frozen=True):
    """An event as JSON lines show it; ``hash`` is hex."""

    position: int
    rollout_id: str
    seq: int
    type: str
    version: int
    recorded_at: int
    payload: msgspec.Raw
    hash: str


def events(
    rollout_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this rollout's events.", show_default=False)
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with events as they arrive.")] = False,
    after: Annotated[
        int, typer.Option(min=0, help="Only events after this position (with an ID: after this seq).")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="How many events to print.")] = None,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Print events in the ledger's order, from the first one on; with --json one object on each line."""
    write = _write_json if json else _write_line
    with read_session(database_url) as session, interruptible() as interrupts:
        if rollout_id is not None and session.reader.state(rollout_id) is None:
            raise UnknownRollout(rollout_id)
        for page in _pages(session, interrupts, rollout_id, after=after, limit=limit, follow=follow):
            write(page)


def _pages(
    session: ReadSession,
    interrupts: Interrupts,
    rollout_id: str | None,
    *,
    after: int,
    limit: int | None,
    follow: bool,
) -> Iterator[list[StoredEvent]]:
    """Pages of events; with ``follow`` without end, waiting for each next one."""
    left = limit
    while left is None or left > 0:
        seen = session.reader.last_position() if follow else 0
        size = PAGE if left is None else min(PAGE, left)
        with interrupts.held():
            page = session.run(session.reader.events_page(after=after, rollout_id=rollout_id, limit=size))
        if page:
            after = page[-1].position if rollout_id is None else page[-1].seq
            left = None if left is None else left - len(page)
            yield page
        elif not follow:
            return
        else:
            _wait_for_change(session, seen)


def _wait_for_change(session: ReadSession, position: int) -> None:
    """Return once the ledger has gone past ``position``.

    Raises:
        OutputClosed: nobody reads our output any more, which no write would tell while there is nothing to write.
    """
    closed = select.poll()
    closed.register(sys.stdout.fileno(), 0)
    while session.reader.last_position() == position:
        if any(state & (select.POLLERR | select.POLLHUP) for _, state in closed.poll(LOOK_EVERY_MS)):
            raise output.OutputClosed


def _write_json(page: list[StoredEvent]) -> None:
    output.put_bytes(
        b"".join(
            output.json_line(
                ShownEvent(
                    position=event.position,
                    rollout_id=event.rollout_id,
                    seq=event.seq,
                    type=event.type,
                    version=event.version,
                    recorded_at=event.recorded_at,
                    payload=msgspec.Raw(event.payload.encode()),
                    hash=event.hash.hex(),
                )
            )
            for event in page
        )
    )


def _write_line(page: list[StoredEvent]) -> None:
    output.put("".join(f"{event_line(event)}\n" for event in page))


def event_line(event: StoredEvent) -> str:
    """One event for people: where, when, which rollout, what, and the short part of what it carries."""
    return (
        f"{event.position:>8}  {output.time_text(event.recorded_at)}  {output.printable(event.rollout_id)}"
        f"  {event.seq:>3}  {event.type:<22}  {_detail(event.payload)}"
    ).rstrip()


def _detail(payload: str) -> str:
    document = codec.loads(payload)
    if not isinstance(document, dict):
        return ""
    parts = [f"{name}={_value(name, value)}" for name, value in document.items() if name not in _LONG_FIELDS]
    text = output.printable(" ".join(parts))
    return text if len(text) <= DETAIL_CHARACTERS else f"{text[: DETAIL_CHARACTERS - 1]}…"


def _value(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if name.endswith("_at") and isinstance(value, int):
        return output.time_text(value)
    if isinstance(value, str):
        return value
    return codec.ascii_json(value)
