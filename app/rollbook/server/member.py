"""An API process among the members: it registers, beats about once a second, and leaves.

API beats are the evidence that leases could be renewed: while no API is alive, no lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from uuid import uuid4

from rollbook.ledger.clock import clock_trouble
from rollbook.ledger.commands import Beat, Leave, Register
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.liveness import host_name, joined, known_dead, left
from rollbook.ledger.refusals import LedgerError, SchedulerGone
from rollbook.ledger.vitals import DEAD_AFTER_US

log = logging.getLogger(__name__)

BEAT_SEC = 1.0
SHORTEST_BEAT_SEC = 0.05


class ApiMember:
    """The membership of one API. Start it before the ledger carries out any other command of this process."""

    def __init__(self, ledger: Ledger, *, lease_timeout_sec: float, accepting: Callable[[], bool]) -> None:
        self.member_id = str(uuid4())
        self.trouble: str | None = None
        """What the last beat failed with; None while beats are accepted."""
        self._ledger = ledger
        self._beat_sec = max(min(BEAT_SEC, lease_timeout_sec / 4), SHORTEST_BEAT_SEC)
        # Half a lease timeout without a word is too long for leases; less than two beats is nothing unusual.
        self._silence_us = int(max(lease_timeout_sec / 2, 2 * self._beat_sec) * MICROSECONDS)
        self._accepting = accepting
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register, extend all live leases if no API was alive, and begin to beat.

        Raises:
            LedgerUnavailable: the ledger cannot be written.
        """
        self._ledger.guard_leases(self._silence_us)
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever(), name="api-beat")

    async def stop(self) -> None:
        """Stop beating and leave, once no request can come any more: leases stop running out with this.

        A ledger that cannot be written lets the member count as alive for a while.
        """
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        left(self.member_id)
        self._ledger.stop_guarding()
        try:
            await self._ledger.submit(Leave(self.member_id))
        except LedgerError as error:
            log.warning("this API could not say that it leaves; it counts as alive for a while: %s", error)

    async def run_once(self) -> bool:
        """Say that this API is alive; whether the ledger took note of it. ``trouble`` tells why not."""
        try:
            try:
                trouble = clock_trouble(self._ledger.skew_us())
                await self._ledger.submit(Beat(self.member_id, accepting=self._accepting(), trouble=trouble))
            except SchedulerGone:
                # Another API took this one for dead, or the clock jumped a day.
                await self._register()
        except Exception as error:
            if self.trouble is None:
                log.warning("a beat of this API failed and is tried again: %s", error)
            self.trouble = str(error)
            return False
        if self.trouble is not None:
            log.warning("the beats of this API are accepted again")
        self.trouble = None
        return True

    async def _register(self) -> None:
        joined(self.member_id)
        command = Register(
            member_id=self.member_id,
            kind="api",
            host=host_name(),
            pid=os.getpid(),
            # Where leases are short, a silence too long for them begins before others count as dead.
            dead_after_us=min(DEAD_AFTER_US, self._silence_us),
            known_dead=await known_dead(self._ledger.reader, "api"),
        )
        if await self._ledger.submit(command):
            log.info("no other API was alive; live leases were extended")

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._beat_sec)
            await self.run_once()
