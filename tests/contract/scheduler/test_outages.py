"""What becomes of running attempts when the database goes away, comes back, or says nothing."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.scheduler.member import SchedulerMember
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.sweeps import Sweeper
from rollbook.scheduler.wire import Finished
from tests.support.outages import hanging, unwritable
from tests.support.scheduling import QUEUE, PlayedPool, admit, only, settings, settled, types
from tests.support.stores import elsewhere

DEAD_AFTER_US = 15_000_000
LONG_AGO_SEC = 60.0


class Obedient(PlayedPool):
    """Its executions end when they are cancelled, as well-behaved ones do."""

    def cancel(self, key: int) -> None:
        super().cancel(key)
        asyncio.get_running_loop().call_soon(self._obey, key)

    def _obey(self, key: int) -> None:
        if key in self.running:
            self.end(key, Finished(key, "cancelled"))


class Sweeping:
    """A scheduler that sweeps; the test says whether it may declare others dead."""

    member_id = "sweeping"

    def __init__(self) -> None:
        self.settled = False

    def may_declare_dead(self) -> bool:
        return self.settled


def neighbour(name: str) -> cmd.Register:
    return cmd.Register(
        member_id=name,
        kind="scheduler",
        host="elsewhere",
        pid=1,
        dead_after_us=DEAD_AFTER_US,
        entrypoint="x.py",
        queues=(QUEUE,),
        capacity=1,
    )


def with_attempt(ledger: Ledger, name: str) -> None:
    """A neighbour that registered long ago, took one rollout, and was not heard since."""
    *_, (claimed,) = elsewhere(ledger, neighbour(name), cmd.Claim(name, (QUEUE,), 1), ago_sec=LONG_AGO_SEC)
    assert claimed.scheduler == name


async def alive(ledger: Ledger) -> set[str]:
    return {member.member_id for member in await ledger.reader.members("scheduler", 0)}


async def test_sweep_declares_nobody_dead_before_all_could_beat_again(ledger: Ledger) -> None:
    await admit(ledger, "left")
    with_attempt(ledger, "that left")
    elsewhere(ledger, cmd.Leave("that left"))
    await admit(ledger, "silent")
    with_attempt(ledger, "silent")
    sweeping = Sweeping()
    sweeper = Sweeper(ledger, sweeping, dead_after_us=DEAD_AFTER_US)
    await sweeper.run_once()
    assert await types(ledger, "left") == ["rollout_admitted", "attempt_started", "attempt_ended"]
    assert await types(ledger, "silent") == ["rollout_admitted", "attempt_started"]
    assert await alive(ledger) == {"silent"}
    sweeping.settled = True
    await sweeper.run_once()
    assert await types(ledger, "silent") == ["rollout_admitted", "attempt_started", "attempt_ended"]
    assert await alive(ledger) == set()


async def test_member_whose_beat_fails_declares_nobody_dead(ledger: Ledger, database_url: str) -> None:
    member = SchedulerMember(ledger, settings(ledger, beat_interval_sec=0.000_001))
    assert not member.may_declare_dead()
    await member.register(capacity=1)
    await member.beat(accepting=True, capacity=1, free=1, trouble=None)
    assert member.may_declare_dead()
    with unwritable(database_url), pytest.raises(LedgerUnavailable):
        await member.beat(accepting=True, capacity=1, free=1, trouble=None)
    assert not member.may_declare_dead()
    await member.leave()


async def test_dead_neighbours_work_goes_on_here(ledger: Ledger, pool: PlayedPool, scheduler: Scheduler) -> None:
    pool.slots = 0
    scheduler.slots_changed()
    await admit(ledger, "r")
    with_attempt(ledger, "dead")
    pool.slots = 1
    state = await settled(ledger, "r", lambda s: s.scheduler == scheduler.member_id)
    assert (state.attempt, state.attempts_counted) == (2, 2)


async def test_scheduler_that_comes_back_from_an_outage_first_lets_others_beat(
    ledger: Ledger, database_url: str, pool: PlayedPool
) -> None:
    scheduler = Scheduler(
        ledger, settings(ledger, beat_interval_sec=20.0, beat_lost_after_sec=0.0), pool, on_broken=pytest.fail
    )
    await scheduler.start()
    await admit(ledger, "ours")
    await pool.until(lambda: bool(pool.running))
    key = only(pool)
    with unwritable(database_url):
        pool.slots = 3
        scheduler.slots_changed()  # a beat tells the new capacity
        await pool.until(lambda: key in pool.cancelled)
    pool.slots = 0
    elsewhere(ledger, neighbour("living"), ago_sec=LONG_AGO_SEC)
    await admit(ledger, "left")
    with_attempt(ledger, "that left")
    elsewhere(ledger, cmd.Leave("that left"))
    # Ended by a sweep, which also finds a beat that is old.
    await settled(ledger, "left", lambda s: s.scheduler is None)
    await ledger.submit(cmd.Beat("living"))
    ours = await settled(ledger, "ours", lambda s: s.scheduler is None)
    assert ours.attempts_counted == 0
    await scheduler.stop()


async def test_attempts_are_stopped_while_the_ledger_hangs(ledger: Ledger, database_url: str, pool: PlayedPool) -> None:
    scheduler = Scheduler(ledger, settings(ledger, beat_lost_after_sec=0.5), pool, on_broken=pytest.fail)
    await scheduler.start()
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    key = only(pool)
    with hanging(database_url):
        await pool.until(lambda: key in pool.cancelled)
        beats = scheduler.loops[1]
        assert (beats.name, beats.trouble) == ("beats", None)  # its answer is still to come
    again = await settled(ledger, "r", lambda s: s.attempt == 2)
    assert again.attempts_counted == 1
    await scheduler.stop()


@pytest.mark.parametrize("on_shutdown", ["release", "cancel"])
async def test_shutdown_without_a_ledger_does_not_wait_for_executions_that_ended(
    ledger: Ledger, database_url: str, on_shutdown: str
) -> None:
    pool = Obedient(slots=1)
    scheduler = Scheduler(
        ledger, settings(ledger, on_shutdown=on_shutdown, clean_up_sec=3600.0), pool, on_broken=pytest.fail
    )
    await scheduler.start()
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    with unwritable(database_url):
        async with asyncio.timeout(60):
            await scheduler.stop()
    assert (pool.killed, pool.stopped) == (False, True)
