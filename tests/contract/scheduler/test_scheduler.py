"""The scheduler against a real ledger, with a pool of runners that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import QueueTaken
from rollbook.ledger.secrets import RolloutSecrets, new_nonce, token_digest
from rollbook.scheduler.runners import Deadline, Lost, Reports
from rollbook.scheduler.scheduler import Scheduler
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
        self.deadlines: dict[int, Deadline] = {}
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

    def run(self, assignment: Assignment, deadline: Deadline) -> None:
        self.running[assignment.key] = assignment
        self.deadlines[assignment.key] = deadline
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


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite3")
    opened.guard_leases(LEASE_US)
    yield opened
    await opened.close()


@pytest.fixture
def pool() -> PlayedPool:
    return PlayedPool(slots=2)


def settings(ledger: Ledger, **changes: object) -> SchedulerSettings:
    defaults: dict[str, object] = {
        "entrypoint": "x.py",
        "drain_sec": 0.05,
        "force_sec": 0.05,
        "clean_up_sec": 0.2,
        "beat_interval_sec": 0.05,
    }
    return SchedulerSettings(
        database_url=str(ledger.url),
        queues=(QUEUE,),
        **{**defaults, **changes},  # type: ignore[arg-type]
    )


@pytest.fixture
async def scheduler(ledger: Ledger, pool: PlayedPool) -> AsyncIterator[Scheduler]:
    running = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await running.start()
    yield running
    await running.stop()


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
            state = ledger.reader.state(rollout_id)
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


async def test_admitted_rollout_is_claimed_with_its_secrets_and_its_result_recorded(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    key = only(pool)
    assert pool.running[key].chat_completions_url == "http://chat/secret"
    assert pool.running[key].llm_api_key == "key"
    pool.end(key, Finished(key, "success", phases=("running",), sample=SAMPLE, reward=1.0))
    state = await settled(ledger, "r", lambda s: not s.active)
    assert state.status == "success"
    assert await types(ledger, "r") == [
        "rollout_admitted",
        "attempt_started",
        "phase_entered",
        "stage_timed",
        "reward_recorded",
        "rollout_finished",
        "attempt_ended",
    ]


async def test_no_more_is_claimed_than_there_are_slots(ledger: Ledger, pool: PlayedPool, scheduler: Scheduler) -> None:
    for number in range(3):
        await admit(ledger, f"r-{number}")
    await pool.until(lambda: len(pool.running) == 2)
    assert ledger.reader.counts()[QUEUE].queued == 1
    key = next(iter(pool.running))
    pool.end(key, Finished(key, "success"))
    await pool.until(lambda: any(a.rollout_id == "r-2" for a in pool.running.values()))


async def test_cancellation_reaches_the_runner_and_ends_the_rollout(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    key = only(pool)
    found = await ledger.submit(cmd.Cancel(requested_by="test", ids=("r",)))
    assert found["r"] == "cancelled_running"
    await pool.until(lambda: key in pool.cancelled)
    pool.end(key, Finished(key, "cancelled"))
    state = await settled(ledger, "r", lambda s: not s.active)
    assert state.status == "cancelled"


async def test_lost_attempt_is_run_again_and_fails_when_attempts_are_used_up(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    for _ in range(2):
        await pool.until(lambda: bool(pool.running))
        key = only(pool)
        pool.end(key, Lost(key, "its runner process exited with code 7"))
    state = await settled(ledger, "r", lambda s: not s.active)
    assert (state.status, state.err_category, state.attempt) == ("failure", "internal_error", 2)
    assert "code 7" in (ledger.reader.result(state).err_message or "")


async def test_released_attempts_do_not_count(ledger: Ledger, pool: PlayedPool, scheduler: Scheduler) -> None:
    await admit(ledger, "r")
    for _ in range(3):
        await pool.until(lambda: bool(pool.running))
        key = only(pool)
        pool.end(key, Lost(key, "bystander", released=True))
    await pool.until(lambda: bool(pool.running))
    state = await settled(ledger, "r", lambda s: s.attempt == 4)
    assert state.attempts_counted == 1


async def test_a_scheduler_declared_dead_stops_its_attempts_and_registers_anew(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    key, before = only(pool), scheduler.member_id
    await ledger.submit(cmd.TakeOver(dead_after_us=-1))
    await pool.until(lambda: key in pool.cancelled)
    pool.end(key, Finished(key, "success", sample=SAMPLE))
    await pool.until(lambda: bool(pool.running))
    assert scheduler.member_id != before
    state = await settled(ledger, "r", lambda s: s.scheduler == scheduler.member_id)
    assert state.attempt == 2
    assert "rollout_finished" not in await types(ledger, "r")


async def test_a_queue_served_with_another_entrypoint_is_refused(ledger: Ledger, scheduler: Scheduler) -> None:
    other = Scheduler(ledger, settings(ledger, entrypoint="y.py"), PlayedPool(1), on_broken=pytest.fail)
    with pytest.raises(QueueTaken, match=r"x\.py"):
        await other.start()


async def test_shutdown_releases_what_still_runs(ledger: Ledger, pool: PlayedPool) -> None:
    stopped = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await stopped.start()
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    await stopped.stop()
    state = await settled(ledger, "r", lambda s: s.scheduler is None)
    assert (state.status, state.attempts_counted, pool.killed, pool.stopped) == ("queued", 0, True, True)


async def test_shutdown_may_cancel_instead(ledger: Ledger, pool: PlayedPool) -> None:
    stopped = Scheduler(ledger, settings(ledger, on_shutdown="cancel"), pool, on_broken=pytest.fail)
    await stopped.start()
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    await stopped.stop()
    state = await settled(ledger, "r", lambda s: not s.active)
    assert state.status == "cancelled"


async def test_queue_time_counts_against_the_agents_deadline(ledger: Ledger, pool: PlayedPool) -> None:
    await admit(ledger, "r", request=b'{"initial_messages":[],"agent_timeout_sec":100,"grader_timeout_sec":7}')
    late = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await late.start()
    await pool.until(lambda: bool(pool.running))
    deadline = pool.deadlines[only(pool)]
    assert deadline.agent_sec == 100
    assert deadline.agent_left_sec is not None
    assert deadline.agent_left_sec == pytest.approx(100 - pool.running[only(pool)].queued_sec)
    assert deadline.grader_sec == 7
    await late.stop()
