"""An API process among the members: it registers, beats once a second, and leaves.

API beats are the evidence that leases could be renewed: while no API is alive, no lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from uuid import uuid4

from rollbook.ledger.commands import Beat, Leave, Register
from rollbook.ledger.decide import MICROSECONDS
from rollbook.ledger.engines import host_name
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerError, SchedulerGone

from .health import DEAD_AFTER_US

log = logging.getLogger(__name__)

BEAT_SEC = 1.0

_alive_here: set[str] = set()
"""Members of this very process: one process can embed several servers."""


class ApiMember:
    """The membership of one API. Start it before the ledger carries out any other command of this process."""

    def __init__(self, ledger: Ledger, *, lease_timeout_sec: float, accepting: Callable[[], bool]) -> None:
        self.member_id = str(uuid4())
        self.trouble: str | None = None
        """What the last beat failed with; None while beats are accepted."""
        self._ledger = ledger
        self._lease_timeout_us = int(lease_timeout_sec * MICROSECONDS)
        self._accepting = accepting
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register, extend all live leases if no API was alive, and begin to beat.

        Raises:
            LedgerUnavailable: the ledger cannot be written.
        """
        self._ledger.guard_leases(self._lease_timeout_us)
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever(), name="api-beat")

    async def stop(self) -> None:
        """Stop beating and leave; a ledger that cannot be written lets the member be declared dead instead."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _alive_here.discard(self.member_id)
        try:
            await self._ledger.submit(Leave(self.member_id))
        except LedgerError as error:
            log.warning("this API could not say that it leaves; it counts as alive for a while: %s", error)

    async def beat_once(self) -> None:
        """Say that this API is alive.

        Raises:
            LedgerUnavailable: the ledger cannot be written.
        """
        try:
            await self._ledger.submit(Beat(self.member_id, accepting=self._accepting()))
        except SchedulerGone:
            # Another API took this one for dead, or the clock jumped a day.
            await self._register()

    async def _register(self) -> None:
        _alive_here.add(self.member_id)
        command = Register(
            member_id=self.member_id,
            kind="api",
            host=host_name(),
            pid=os.getpid(),
            dead_after_us=DEAD_AFTER_US,
            known_dead=known_dead(self._ledger),
        )
        if await self._ledger.submit(command):
            log.info("no other API was alive; live leases were extended")

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SEC)
            try:
                await self.beat_once()
                self.trouble = None
            except Exception as error:
                if self.trouble is None:
                    log.warning("a beat of this API failed and is tried again: %s", error)
                self.trouble = str(error)


def known_dead(ledger: Ledger) -> tuple[str, ...]:
    """API members of this host whose process is gone.

    Processes of containers often get the same number again, so a member with our own number is one of the past,
    unless this very process made it.
    """
    here = host_name()
    return tuple(
        member.member_id
        for member in ledger.reader.members("api", 0)
        if member.host == here and member.member_id not in _alive_here and not _runs(member.pid)
    )


def _runs(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
