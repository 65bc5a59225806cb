"""The processes of a chaos run: APIs and schedulers that are started again whenever they end, as a host's init does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.processes import RUNNER_MODULE, Deployment, Started, free_port, until, url_of

APIS = 2
SCHEDULERS = 3
QUEUE = "workload"
WORKLOAD = Path(__file__).with_name("workload.py")
START_AGAIN_SEC = 0.2
LOOK_SEC = 0.05
# Attempts are lost all the time here, and that is not what rollouts are to end of.
MAX_ATTEMPTS = 1_000
RESULT_WAIT_SEC = 1.0
LEASE_SEC = 30.0
STALL_SEC = 3.0


class Member:
    """One API or scheduler, in its process of the moment."""

    def __init__(self, name: str, start: Callable[[], Started]) -> None:
        self.name = name
        self.process = start()
        self._start = start
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            while not self.process.ended:  # noqa: ASYNC110  # no signal of it reaches us that others would not miss
                await asyncio.sleep(LOOK_SEC)
            await asyncio.sleep(START_AGAIN_SEC)
            self.process = self._start()

    async def stop_keeping(self) -> None:
        """Start it no more; what runs goes on."""
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping

    def revive(self) -> None:
        """Start it if it has ended."""
        if self.process.ended:
            self.process = self._start()


class Fleet:
    """All of them."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.ports = [free_port() for _ in range(APIS)]
        self._paused: set[asyncio.Task[None]] = set()
        self.apis = [Member(f"API {number}", self._api(port)) for number, port in enumerate(self.ports, start=1)]
        self.schedulers = [Member(f"scheduler {number}", self._scheduler) for number in range(1, SCHEDULERS + 1)]

    def _api(self, port: int) -> Callable[[], Started]:
        return lambda: self._deployment.api(
            queue=QUEUE,
            port=port,
            max_attempts=MAX_ATTEMPTS,
            result_wait_timeout_sec=RESULT_WAIT_SEC,
            polling_lease_timeout_sec=LEASE_SEC,
        )

    def _scheduler(self) -> Started:
        return self._deployment.scheduler(entrypoint=str(WORKLOAD), queues=(QUEUE,), stall_after_sec=STALL_SEC)

    @property
    def members(self) -> list[Member]:
        return [*self.apis, *self.schedulers]

    @property
    def runners(self) -> list[int]:
        return sorted(self._deployment.pids(RUNNER_MODULE))

    def pause(self, pid: int, seconds: float) -> None:
        """SIGSTOP now, SIGCONT later."""
        task = asyncio.create_task(_pause(pid, seconds))
        self._paused.add(task)
        task.add_done_callback(self._paused.discard)

    async def calm(self) -> None:
        """Wait until nothing is paused any more."""
        await asyncio.gather(*self._paused)

    async def at_work(self) -> None:
        """Wait until all of them work: one that has only just been started still ends by any signal.

        One that has ended meanwhile is waited for no longer.
        """
        for api, port in zip(self.apis, self.ports, strict=True):
            await self._answers_or_ended(api, port)
        await until(self._all_have_runners, what="a runner of each scheduler's own")

    async def _answers_or_ended(self, api: Member, port: int) -> None:
        answer = asyncio.create_task(self._deployment.answering(url_of(port)))
        try:
            await until(lambda: api.process.ended or answer.done(), what=f"{api.name} at work")
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    def _all_have_runners(self) -> bool:
        # Of its own: those of a scheduler that was there before it may still be ending.
        parents = {_parent(pid) for pid in self.runners}
        return all(each.process.ended or each.process.pid in parents for each in self.schedulers)

    async def end(self) -> dict[str, int]:
        """Ask all to end, and wait until they have; their exit codes."""
        for member in self.members:
            await member.stop_keeping()
            member.revive()
        await self.at_work()
        codes = await asyncio.gather(*(member.process.stop() for member in self.members))
        return {member.name: code for member, code in zip(self.members, codes, strict=True)}

    async def abandon(self) -> None:
        """Start nothing any more; the deployment ends what runs."""
        for member in self.members:
            await member.stop_keeping()


async def _pause(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        # Behind the program's name, which may hold anything: the state and the parent.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None
