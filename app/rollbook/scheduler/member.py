"""A scheduler among the members: it registers, beats and leaves, and knows how long its last accepted beat is ago."""

from __future__ import annotations

import os
import time
from uuid import uuid4

from rollbook.ledger.commands import Beat, Leave, Register
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.liveness import host_name, joined, known_dead, left
from rollbook.settings import SchedulerSettings

from .contact import Contact

SETTLED_AFTER_BEATS = 1.5
"""For so many beat intervals after a break in the contact nobody is declared dead: all who live beat meanwhile."""


class SchedulerMember:
    """The membership of one scheduler process; each registration has an id of its own."""

    def __init__(self, ledger: Ledger, settings: SchedulerSettings) -> None:
        self.member_id = uuid4().hex
        self._ledger = ledger
        self._settings = settings
        self._beaten_at = time.monotonic()
        # Half of what makes others dead: in a shorter break theirs cannot have become so old.
        self._contact = Contact(ledger.clock, longest_gap_sec=settings.dead_after_sec / 2)

    @property
    def silent_sec(self) -> float:
        """How long the last accepted beat is ago, counted from when it was sent: the ledger may not wait longer."""
        return time.monotonic() - self._beaten_at

    def may_declare_dead(self) -> bool:
        """Whether others had the time to beat since this process was last cut off from the ledger, as they may be."""
        return self._contact.lasts_sec >= SETTLED_AFTER_BEATS * self._settings.beat_interval_sec

    async def register(self, *, capacity: int) -> None:
        """Join.

        Raises:
            QueueTaken: a live scheduler serves one of the queues with another entrypoint.
            LedgerUnavailable: the ledger cannot be read or written.
        """
        joined(self.member_id)
        began = time.monotonic()
        await self._ledger.submit(
            Register(
                member_id=self.member_id,
                kind="scheduler",
                host=host_name(),
                pid=os.getpid(),
                dead_after_us=int(self._settings.dead_after_sec * MICROSECONDS),
                entrypoint=self._settings.entrypoint,
                queues=self._settings.queues,
                capacity=capacity,
                known_dead=await known_dead(self._ledger.reader, "scheduler"),
            )
        )
        self._beaten_at = began
        self._contact.accepted()

    async def register_anew(self, *, capacity: int) -> None:
        """Join as another member: this one was declared dead. Raises as `register` does."""
        left(self.member_id)
        self.member_id = uuid4().hex
        await self.register(capacity=capacity)

    async def beat(self, *, accepting: bool, capacity: int, free: int, trouble: str | None) -> None:
        """Say that this scheduler lives.

        Raises:
            SchedulerGone: it was declared dead.
            LedgerUnavailable: the ledger cannot be written.
        """
        began = time.monotonic()
        beat = Beat(self.member_id, accepting=accepting, capacity=capacity, free=free, trouble=trouble)
        try:
            await self._ledger.submit(beat)
        except BaseException:
            self._contact.failed()
            raise
        self._beaten_at = began
        self._contact.accepted()

    async def leave(self) -> None:
        """Note an end on purpose.

        Raises:
            LedgerUnavailable: the ledger cannot be written.
        """
        left(self.member_id)
        await self._ledger.submit(Leave(self.member_id))
