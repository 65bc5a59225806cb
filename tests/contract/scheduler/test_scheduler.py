"""The scheduler against a real ledger, with a pool of runners that the test plays."""

from __future__ import annotations

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import QueueTaken
from rollbook.ledger.transaction import QueueCount
from rollbook.scheduler import scheduler as scheduler_module
from rollbook.scheduler.runners import Lost
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.wire import Finished
from tests.support.scheduling import QUEUE, SAMPLE, PlayedPool, admit, only, settings, settled, types


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
    assert (await ledger.reader.counts())[QUEUE].queued == 1
    key = next(iter(pool.running))
    pool.end(key, Finished(key, "success"))
    await pool.until(lambda: any(a.rollout_id == "r-2" for a in pool.running.values()))


async def test_slots_that_become_free_while_nothing_waits_are_no_reason_to_look(
    ledger: Ledger, pool: PlayedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "BACKSTOP_SEC", 60.0)
    look, looks = ledger.reader.counts, 0

    async def noted() -> dict[str, QueueCount]:
        nonlocal looks
        looks += 1
        return await look()

    monkeypatch.setattr(ledger.reader, "counts", noted)
    scheduler = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await scheduler.start()
    try:
        for number in range(3):
            await admit(ledger, f"r-{number}")
            await pool.until(lambda: bool(pool.running))
            key = only(pool)
            pool.end(key, Finished(key, "success"))
            await settled(ledger, f"r-{number}", lambda s: not s.active)
        assert looks <= 1 + 3, "one when it starts, and one for each admission"
    finally:
        await scheduler.stop()


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
    assert "code 7" in ((await ledger.reader.result(state)).err_message or "")


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


async def test_runner_is_told_how_long_the_rollout_had_waited(ledger: Ledger, pool: PlayedPool) -> None:
    await admit(ledger, "r")
    state = await settled(ledger, "r", lambda s: s.status == "queued")
    waited_us = ledger.clock() - state.queued_at
    late = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await late.start()
    await pool.until(lambda: bool(pool.running))
    assert pool.running[only(pool)].queued_sec * 1_000_000 >= waited_us
    await late.stop()
