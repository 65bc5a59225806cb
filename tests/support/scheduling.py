"""A scheduler's surroundings in tests: runners that the test plays, short times, and rollouts to run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.secrets import RolloutSecrets, new_nonce, token_digest
from rollbook.scheduler.runners import Lost, Reports
from rollbook.scheduler.wire import Assignment, Finished
from rollbook.settings import SchedulerSettings
from rollbook_projections import RolloutState

QUEUE = "q"
LEASE_US = 120_000_000
SAMPLE = b'{"messages":[],"reward":1.0}'


class PlayedPool:
    """Runners played by the test: what was handed over, and what is cancelled, is only noted."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: dict[int, Assignment] = {}
        self.cancelled: set[int] = set()
        self.trouble: str | None = None
        self.reports: Reports | None = None
        self.stopped = False
        self.killed = False
        self._changed = asyncio.Event()

    @property
    def capacity(self) -> int:
        return self.slots

    @property
    def free(self) -> int:
        return self.slots - len(self.running)

    async def start(self, reports: Reports) -> None:
        self.reports = reports
        reports.slots_changed()

    def run(self, assignment: Assignment) -> None:
        self.running[assignment.key] = assignment
        self._changed.set()

    def cancel(self, key: int) -> None:
        self.cancelled.add(key)
        self._changed.set()

    async def kill(self) -> None:
        self.killed = True
        self.running.clear()

    async def stop(self, timeout_sec: float) -> None:
        self.stopped = True

    def end(self, key: int, report: Finished | Lost) -> None:
        del self.running[key]
        assert self.reports is not None
        if isinstance(report, Lost):
            self.reports.lost(report)
        else:
            self.reports.finished(report)
        self.reports.slots_changed()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def settings(ledger: Ledger, **changes: object) -> SchedulerSettings:
    defaults: dict[str, object] = {
        "entrypoint": "x.py",
        "drain_sec": 0.05,
        "force_sec": 0.3,
        "clean_up_sec": 0.2,
        "beat_interval_sec": 0.05,
    }
    return SchedulerSettings(
        database_url=str(ledger.url),
        queues=(QUEUE,),
        **{**defaults, **changes},  # type: ignore[arg-type]
    )


async def admit(ledger: Ledger, rollout_id: str, *, request: bytes = b'{"initial_messages":[]}') -> bytes:
    nonce = new_nonce()
    digest = token_digest(ledger.keys.token(nonce))
    await ledger.submit(
        cmd.Admit(
            rollout_id=rollout_id,
            queue=QUEUE,
            max_queue_depth=None,
            max_attempts=2,
            lease_nonce=nonce,
            lease_digest=digest,
            lease_timeout_us=LEASE_US,
            agent_timeout_us=None,
            label=None,
            endpoint_origin="",
            endpoint_digest="",
            request=request,
            sealed=ledger.keys.seal(RolloutSecrets("http://chat/secret", "key"), rollout_id),
        )
    )
    return digest


async def settled(ledger: Ledger, rollout_id: str, condition: Callable[[RolloutState], bool]) -> RolloutState:
    """The rollout's state once ``condition`` holds."""
    changed = asyncio.Event()
    ledger.feed.listen(lambda states: changed.set())
    async with asyncio.timeout(10):
        while True:
            state = await ledger.reader.state(rollout_id)
            assert state is not None
            if condition(state):
                return state
            changed.clear()
            await changed.wait()


def only(pool: PlayedPool) -> int:
    (key,) = pool.running
    return key


async def types(ledger: Ledger, rollout_id: str) -> list[str]:
    return [event.type for event in await ledger.reader.events_page(rollout_id=rollout_id)]
