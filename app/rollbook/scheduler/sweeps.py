"""The sweeps: leases that ran out, deadlines that passed in the queue, schedulers that died."""

from __future__ import annotations

import logging
from typing import Protocol

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger

Sweep = cmd.ExpireLeases | cmd.ExpireDeadlines | cmd.TakeOver

log = logging.getLogger(__name__)


class Sweeping(Protocol):
    """The scheduler that sweeps, as a member."""

    @property
    def member_id(self) -> str: ...

    def may_declare_dead(self) -> bool:
        """Whether a beat that is old says something of its scheduler, and not of an outage that is just over."""


class Sweeper:
    """Looks first and writes only where something is due; what it saw is judged again under the lock."""

    def __init__(self, ledger: Ledger, member: Sweeping, *, dead_after_us: int) -> None:
        self._ledger = ledger
        self._member = member
        self._dead_after_us = dead_after_us

    async def run_once(self) -> None:
        """One look at everything; full portions are followed by another one."""
        for command in await self._due():
            # Once they are taken over, nothing tells any more whose they were.
            lost = await self._lost_owners(command) if isinstance(command, cmd.TakeOver) else []
            done = command.limit
            while done == command.limit:
                done = await self._ledger.submit(command)
                if done:
                    log.info("%s", _in_words(command, done, lost))

    async def _due(self) -> list[Sweep]:
        leases, deadlines, orphans = await self._ledger.reader.sweep_due(self._ledger.clock())
        due: list[Sweep] = []
        if leases:
            due.append(cmd.ExpireLeases())
        if deadlines:
            due.append(cmd.ExpireDeadlines())
        dead_after_us = self._dead_after_us if self._member.may_declare_dead() else None
        if orphans or (dead_after_us is not None and await self._stale(dead_after_us)):
            due.append(cmd.TakeOver(dead_after_us, by=self._member.member_id))
        return due

    async def _stale(self, dead_after_us: int) -> bool:
        return await self._ledger.reader.stale_schedulers(self._ledger.clock() - dead_after_us)

    async def _lost_owners(self, command: cmd.TakeOver) -> list[str]:
        stale = 0 if command.dead_after_us is None else self._ledger.clock() - command.dead_after_us
        owners = await self._ledger.reader.lost_owners(stale)
        return [_named(member_id, host) for member_id, host in owners.items() if member_id != command.by]


def _named(member_id: str, host: str | None) -> str:
    return member_id[:8] if host is None else f"{member_id[:8]} on {host.partition(' ')[0]}"


def _in_words(command: Sweep, done: int, lost: list[str]) -> str:
    rollouts = "1 rollout" if done == 1 else f"{done} rollouts"
    match command:
        case cmd.ExpireLeases():
            return f"{rollouts} ended: nobody polled in time"
        case cmd.ExpireDeadlines():
            return f"{rollouts} ended: the deadline passed before the start"
        case cmd.TakeOver():
            whose = f" ({', '.join(lost)})" if lost else ""
            return f"{rollouts} taken over from schedulers that are gone{whose}"
