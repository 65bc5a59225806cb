"""What is done to the processes and the database meanwhile, one thing after the other, as a seed has it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress

from tests.chaos.fleet import Fleet, Member
from tests.support.postgres import PrivateServer, execute
from tests.support.postgres_server import StopMode
from tests.support.processes import SCHEDULER

PAUSE_SEC = (0.5, 2.0)
"""Between two actions."""
SHORT_STOP_SEC = (0.1, 0.8)
LONG_STOP_SEC = (SCHEDULER.dead_after_sec + 1.0, SCHEDULER.dead_after_sec + 4.0)
"""Longer than any process may be silent; the longest are also longer than a transaction may."""
MODES: tuple[StopMode, ...] = ("fast", "immediate", "kill")

END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend' ORDER BY random() LIMIT $1) chosen
"""


class Disorder:
    """Acts on a fleet and its database; ``say`` is told of each action before it is taken."""

    def __init__(self, fleet: Fleet, server: PrivateServer, *, seed: int, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._server = server
        self._random = random.Random(seed)
        self._say = say
        self._deck: list[str] = []

    async def go_on(self) -> None:
        """Act for ever. Each kind of action comes once before one comes again."""
        while True:
            if not self._deck:
                self._deck = list(_ACTIONS)
                self._random.shuffle(self._deck)
            await _ACTIONS[self._deck.pop()](self)
            await asyncio.sleep(self._random.uniform(*PAUSE_SEC))

    def _member(self, members: list[Member]) -> Member:
        return self._random.choice(members)

    async def kill_api(self) -> None:
        self._send(self._member(self._fleet.apis), signal.SIGKILL)

    async def kill_scheduler(self) -> None:
        self._send(self._member(self._fleet.schedulers), signal.SIGKILL)

    async def kill_runner(self) -> None:
        if runners := self._fleet.runners:
            pid = self._random.choice(runners)
            self._say(f"SIGKILL to a runner ({pid})")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def kill_everything(self) -> None:
        for member in self._fleet.members:
            self._send(member, signal.SIGKILL)

    async def restart_api(self) -> None:
        self._send(self._member(self._fleet.apis), signal.SIGTERM)

    async def restart_scheduler(self) -> None:
        self._send(self._member(self._fleet.schedulers), signal.SIGTERM)

    async def stop_api_shortly(self) -> None:
        self._stop(self._member(self._fleet.apis), SHORT_STOP_SEC)

    async def stop_api_for_long(self) -> None:
        self._stop(self._member(self._fleet.apis), LONG_STOP_SEC)

    async def stop_scheduler_shortly(self) -> None:
        self._stop(self._member(self._fleet.schedulers), SHORT_STOP_SEC)

    async def stop_scheduler_for_long(self) -> None:
        self._stop(self._member(self._fleet.schedulers), LONG_STOP_SEC)

    async def stop_runner_for_long(self) -> None:
        if runners := self._fleet.runners:
            self._pause("a runner", self._random.choice(runners), LONG_STOP_SEC)

    async def end_some_sessions(self) -> None:
        await self._end_sessions(self._random.randint(1, 5))

    async def end_all_sessions(self) -> None:
        await self._end_sessions(1_000)

    async def restart_database(self) -> None:
        mode = self._random.choice(MODES)
        self._say(f"the database is restarted ({mode})")
        await asyncio.to_thread(self._server.restart, mode)

    def _send(self, member: Member, number: signal.Signals) -> None:
        self._say(f"{number.name} to {member.name} ({member.process.pid})")
        member.process.send(number)

    def _stop(self, member: Member, bounds: tuple[float, float]) -> None:
        self._pause(member.name, member.process.pid, bounds)

    def _pause(self, name: str, pid: int, bounds: tuple[float, float]) -> None:
        seconds = self._random.uniform(*bounds)
        self._say(f"SIGSTOP to {name} ({pid}) for {seconds:.1f} s")
        self._fleet.pause(pid, seconds)

    async def _end_sessions(self, count: int) -> None:
        self._say(f"up to {count} sessions of the database are ended")
        await asyncio.to_thread(execute, self._server.url(), END_SESSIONS, count)


_ACTIONS = {
    action.__name__: action
    for action in (
        Disorder.kill_api,
        Disorder.kill_scheduler,
        Disorder.kill_runner,
        Disorder.kill_everything,
        Disorder.restart_api,
        Disorder.restart_scheduler,
        Disorder.stop_api_shortly,
        Disorder.stop_api_for_long,
        Disorder.stop_scheduler_shortly,
        Disorder.stop_scheduler_for_long,
        Disorder.stop_runner_for_long,
        Disorder.end_some_sessions,
        Disorder.end_all_sessions,
        Disorder.restart_database,
    )
}
