"""What operators read: pages of rollouts and of events. Times are microseconds since the epoch, UTC."""

from __future__ import annotations

import msgspec

from rollbook.ledger import listing
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.listing import EventView, RolloutView

from .query import RolloutsQuery

__all__ = ["EventView", "EventsPage", "RolloutView", "RolloutsPage", "events_page", "rollouts_page"]


class RolloutsPage(msgspec.Struct, frozen=True):
    """Body of `GET /rollouts`, the newest first; ``next`` is what to pass as `before`, null on the last page."""

    rollouts: list[RolloutView]
    next: int | None


class EventsPage(msgspec.Struct, frozen=True):
    """Body of the event routes; ``next_after`` is what to pass as `after`, also to look again later."""

    events: list[EventView]
    next_after: int


async def rollouts_page(ledger: Ledger, query: RolloutsQuery) -> RolloutsPage:
    """A page of rollouts.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    found = await listing.rollouts_page(
        ledger.reader,
        status=None if query.status is None else query.status.value,
        queue=query.queue,
        prefix=query.prefix,
        before=query.before,
        limit=query.limit + 1,
    )
    shown = found[: query.limit]
    more = len(found) > query.limit
    return RolloutsPage(shown, shown[-1].number if more else None)


async def events_page(ledger: Ledger, *, after: int, limit: int, rollout_id: str | None = None) -> EventsPage:
    """Events after a position, or after a seq of one rollout: at most ``limit`` and about 4 MiB.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    events = await ledger.reader.events_page(after=after, rollout_id=rollout_id, limit=limit)
    last = after
    if events:
        last = events[-1].position if rollout_id is None else events[-1].seq
    return EventsPage([listing.event_view(event) for event in events], last)
