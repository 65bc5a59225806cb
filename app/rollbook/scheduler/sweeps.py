"""The sweeps: leases that ran out, deadlines that passed in the queue, schedulers that died."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class Sweeper:
    """Looks first and writes only where something is due; what it saw is judged again under the lock."""

    def __init__(self, ledger: Ledger, *, dead_after_us: int, member_id: Callable[[], str]) -> None:
        self._ledger = ledger
        self._member_id = member_id
        self._dead_after_us = dead_after_us

    async def run_once(self) -> None:
        """One look at everything; full portions are followed by another one."""
        for command in await self._due():
            while True:
                done = await self._ledger.submit(command)
                if done:
                    log.info("%s: %d", type(command).__name__, done)
                if done < command.limit:
                    break

    async def _due(self) -> list[cmd.ExpireLeases | cmd.ExpireDeadlines | cmd.TakeOver]:
        leases, deadlines, orphans = await self._ledger.reader.sweep_due(self._ledger.clock())
        due: list[cmd.ExpireLeases | cmd.ExpireDeadlines | cmd.TakeOver] = []
        if leases:
            due.append(cmd.ExpireLeases())
        if deadlines:
            due.append(cmd.ExpireDeadlines())
        if orphans or await self._ledger.reader.stale_schedulers(self._ledger.clock() - self._dead_after_us):
            due.append(cmd.TakeOver(dead_after_us=self._dead_after_us, by=self._member_id()))
        return due
