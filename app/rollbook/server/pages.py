"""What operators read: pages of rollouts and of events. Times are microseconds since the epoch, UTC."""

from __future__ import annotations

import msgspec

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import StoredEvent
from rollbook_projections import RolloutState

from .query import RolloutsQuery


class RolloutView(msgspec.Struct, frozen=True, gc=False):
    """A rollout's row, without its lease's digest and its hash chain's head."""

    number: int
    rollout_id: str
    queue: str
    status: str
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
    err_category: str | None


class RolloutsPage(msgspec.Struct, frozen=True):
    """Body of `GET /rollouts`, the newest first; ``next`` is what to pass as `before`, null on the last page."""

    rollouts: list[RolloutView]
    next: int | None


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


class EventsPage(msgspec.Struct, frozen=True):
    """Body of the event routes; ``next_after`` is what to pass as `after`, also to look again later."""

    events: list[EventView]
    next_after: int


_ROLLOUT_FIELDS = tuple(field.name for field in msgspec.structs.fields(RolloutView))


async def rollouts_page(ledger: Ledger, query: RolloutsQuery) -> RolloutsPage:
    """A page of rollouts.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    states = await ledger.reader.rollouts_page(
        status=None if query.status is None else query.status.value,
        queue=query.queue,
        prefix=query.prefix,
        before=query.before,
        limit=query.limit + 1,
    )
    shown = states[: query.limit]
    more = len(states) > query.limit
    return RolloutsPage([_rollout_view(state) for state in shown], shown[-1].number if more else None)


async def events_page(ledger: Ledger, *, after: int, limit: int, rollout_id: str | None = None) -> EventsPage:
    """Events after a position, or after a seq of one rollout: at most ``limit`` and about 4 MiB.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    events = await ledger.reader.events_page(after=after, rollout_id=rollout_id, limit=limit)
    last = after
    if events:
        last = events[-1].position if rollout_id is None else events[-1].seq
    return EventsPage([event_view(event) for event in events], last)


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


def _rollout_view(state: RolloutState) -> RolloutView:
    return RolloutView(*[getattr(state, name) for name in _ROLLOUT_FIELDS])
