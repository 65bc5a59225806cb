"""What an API process measures of itself and counts in the ledger, for its metrics.

Counts of what happened begin at zero with the process, as Prometheus expects, and are of the whole ledger: they come
from its events, so it does not matter which process wrote those. Nothing is counted before metrics are first asked for,
and then from the events that are new since the last time: a ledger that holds millions costs the same as an empty one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.meters import SECONDS, Distribution
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.metrics.looplag import LoopLag
from rollbook_client.events import (
    AttemptEnded,
    AttemptStarted,
    CancellationRequested,
    LeaseExpired,
    RolloutAdmitted,
    RolloutFinished,
)
from rollbook_projections import RolloutState

log = logging.getLogger(__name__)

FOLLOW_SEC = 5.0
"""How often events are counted between two questions, so that no answer has many to count."""
LOOK_BACK_EVENTS = 20_000
"""A process that ran for long before it was first asked counts at most so many of the events that it has seen."""
CHUNK_EVENTS = 2_000
"""So few that looking each one's rollout up is less than reading all rollouts, whatever a planner thinks of it."""

COUNTED = (
    RolloutAdmitted.TYPE,
    AttemptStarted.TYPE,
    AttemptEnded.TYPE,
    LeaseExpired.TYPE,
    CancellationRequested.TYPE,
    RolloutFinished.TYPE,
)
COUNTS = f"""
    SELECT e.type, r.queue,
           CASE e.type
               WHEN '{RolloutFinished.TYPE}' THEN r.status
               WHEN '{AttemptEnded.TYPE}' THEN
                   (SELECT a.outcome FROM attempt_ends a WHERE a.number = e.number AND a.position = e.position)
           END AS outcome,
           CASE WHEN e.type = '{RolloutFinished.TYPE}' THEN r.err_category END AS category, count(*)
    FROM events e JOIN rollouts r ON r.number = e.number
    WHERE e.position > ? AND e.position <= ? AND e.type IN ({", ".join(f"'{kind}'" for kind in COUNTED)})
    GROUP BY 1, 2, 3, 4
"""

Happening = tuple[str, str, str, str]
"""Event type, queue, outcome (of an attempt's or a rollout's end, else empty), error category or empty."""


class ProcessMeters:
    """One per API; harmless while nobody asks."""

    def __init__(self) -> None:
        self.wake_sec = Distribution(SECONDS)
        """From the time of a change of status in the ledger to the moment at which this process wakes who waits."""
        self.loop_lag = LoopLag()
        self.open_streams = 0
        self.happened: Counter[Happening] = Counter()
        self._ledger: Ledger | None = None
        self._newest_at = 0
        self._began_at = 0
        self._counted: int | None = None
        self._counting = asyncio.Lock()
        self._asked = asyncio.Event()

    def attach(self, ledger: Ledger) -> None:
        """Measure this open ledger from now on; call it on the loop that serves."""
        self._ledger = ledger
        self._newest_at = ledger.clock()
        self._began_at = ledger.feed.position
        self._counted = None
        self._counting = asyncio.Lock()
        self._asked = asyncio.Event()
        ledger.feed.listen(self._told)

    def _told(self, changed: dict[int, RolloutState]) -> None:
        assert self._ledger is not None
        now, before = self._ledger.clock(), self._newest_at
        for state in changed.values():
            # What is told of a rollout besides its status leaves the time of its last change as it was.
            if state.changed_at > before:
                self.wake_sec.add(max(now - state.changed_at, 0) / 1_000_000)
                self._newest_at = max(self._newest_at, state.changed_at)

    async def count(self) -> None:
        """Bring ``happened`` up to the ledger's end.

        Raises:
            LedgerUnavailable: the ledger cannot be read; what was counted stands.
        """
        ledger = self._ledger
        if ledger is None:
            raise LedgerUnavailable("the ledger is not open yet")
        self._asked.set()
        async with self._counting:
            end = await ledger.reader.last_position()
            if self._counted is None:
                self._counted = max(self._began_at, end - LOOK_BACK_EVENTS)
            while self._counted < end:
                upto = min(self._counted + CHUNK_EVENTS, end)
                for kind, queue, outcome, category, number in await ledger.reader.long_query(
                    COUNTS, (self._counted, upto)
                ):
                    self.happened[kind, queue, outcome or "", category or ""] += number
                self._counted = upto

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Measure the loop, and follow the ledger once somebody asks, while the block lasts."""
        async with self.loop_lag.measured():
            task = asyncio.get_running_loop().create_task(self._follow(), name="meters-follow")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        await self._asked.wait()
        while True:
            await asyncio.sleep(FOLLOW_SEC)
            try:
                await self.count()
            except LedgerUnavailable as error:
                log.debug("events are counted later: %s", error)
            except Exception:
                log.exception("events could not be counted; they are counted later")

    async def streamed(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The frames, while their stream counts as open."""
        self.open_streams += 1
        try:
            async for frame in frames:
                yield frame
        finally:
            self.open_streams -= 1

    def total(self, kind: str, places: Iterable[int]) -> Counter[tuple[str, ...]]:
        """How often a kind of event happened, by some of the places of `Happening`."""
        chosen = tuple(places)
        found: Counter[tuple[str, ...]] = Counter()
        for happening, number in self.happened.items():
            if happening[0] == kind:
                found[tuple(happening[place] for place in chosen)] += number
        return found
