"""The attempts that a scheduler owns: which execution belongs to which, and which of them are reported already."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook.logformat import about
from rollbook_client.events import StageSpan
from rollbook_projections import RolloutState


class Attempt(msgspec.Struct):
    """An attempt this process owns. ``key`` is its execution's, unique in this process and never 0.

    ``reported``: its end is on the way to the ledger, and nothing else may be reported of it.
    """

    key: int
    rollout_id: str
    number: int
    attempt: int
    scheduler: str
    queued: StageSpan
    cancelled: bool = False
    reported: bool = False

    @property
    def about(self) -> dict[str, object]:
        """What a record of the log that concerns it says so with."""
        return about(self.rollout_id, attempt=self.attempt, scheduler=self.scheduler)


class Attempts:
    """From the claim until the end is recorded.

    ``idle`` is set while there are none, and ``all_reported`` while no execution is waited for.
    """

    def __init__(self) -> None:
        self._last_key = 0
        self._by_key: dict[int, Attempt] = {}
        self._by_number: dict[int, Attempt] = {}
        self._unreported: dict[int, Attempt] = {}
        self.idle = asyncio.Event()
        self.all_reported = asyncio.Event()
        self._tell()

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def running(self) -> int:
        """How many are not over yet."""
        return len(self._unreported)

    def own(self, state: RolloutState, *, now_us: int) -> Attempt:
        """Take in a claimed rollout; its time in the queue ends now (microseconds)."""
        self._last_key += 1
        queued = StageSpan(stage="queue", started_at=state.queued_at, ended_at=max(now_us, state.queued_at))
        attempt = Attempt(self._last_key, state.rollout_id, state.number, state.attempt, state.scheduler or "", queued)
        self._by_key[attempt.key] = attempt
        self._by_number[attempt.number] = attempt
        self._unreported[attempt.key] = attempt
        self._tell()
        return attempt

    def get(self, key: int) -> Attempt | None:
        """The attempt of an execution that is still to be reported; None when it is not ours (any more)."""
        return self._unreported.get(key)

    def of(self, number: int) -> Attempt | None:
        """The last attempt owned of a rollout, by its number."""
        return self._by_number.get(number)

    def known(self) -> set[tuple[int, int]]:
        """Rollout number and attempt of all that are owned, reported ones included."""
        return {(attempt.number, attempt.attempt) for attempt in self._by_key.values()}

    def unreported(self) -> list[Attempt]:
        """Those whose end is not known yet."""
        return list(self._unreported.values())

    def report(self, attempt: Attempt) -> None:
        """Its end is known, and on the way to the ledger."""
        attempt.reported = True
        self._unreported.pop(attempt.key, None)
        self._tell()

    def forget(self, key: int) -> None:
        """The attempt is over, or somebody else's."""
        attempt = self._by_key.pop(key, None)
        self._unreported.pop(key, None)
        if attempt is not None and self._by_number.get(attempt.number) is attempt:
            del self._by_number[attempt.number]
        self._tell()

    def _tell(self) -> None:
        for event, holds in ((self.idle, not self._by_key), (self.all_reported, not self._unreported)):
            if holds:
                event.set()
            else:
                event.clear()
