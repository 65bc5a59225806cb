"""The scheduler when something happens between two of its steps, or the ledger cannot be written."""

from __future__ import annotations

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.wire import Finished
from rollbook_client.events import StageSpan
from rollbook_projections import RolloutState
from tests.support.outages import unwritable
from tests.support.scheduling import SAMPLE, PlayedPool, admit, only, settings, settled, types
from tests.support.stores import elsewhere


async def test_request_with_lone_surrogates_is_handed_over_as_it_came(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    request = rb'{"initial_messages":[],"label":"\ud800","agent_timeout_sec":5}'
    await admit(ledger, "r", request=request)
    await pool.until(lambda: bool(pool.running))
    assert pool.running[only(pool)].request == request


async def test_claim_whose_slot_is_gone_when_it_is_answered_goes_back_uncounted(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    def claimed(changed: dict[int, RolloutState]) -> None:
        # The feed tells of the claim before the scheduler goes on with its answer.
        if any(state.attempt == 1 and state.scheduler is not None for state in changed.values()):
            pool.slots = 0

    ledger.feed.listen(claimed)
    await admit(ledger, "r")
    state = await settled(ledger, "r", lambda s: s.attempt == 1 and s.scheduler is None)
    assert (state.status, state.attempts_counted, pool.running) == ("queued", 0, {})
    pool.slots = 1
    scheduler.slots_changed()
    await pool.until(lambda: bool(pool.running))


async def test_rollout_cancelled_before_its_claim_is_answered_does_not_run(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    def claimed(changed: dict[int, RolloutState]) -> None:
        if any(state.scheduler is not None and state.cancel_requested_at is None for state in changed.values()):
            elsewhere(ledger, cmd.Cancel(requested_by="test", ids=("r",)))

    ledger.feed.listen(claimed)
    await admit(ledger, "r")
    state = await settled(ledger, "r", lambda s: not s.active)
    assert (state.status, pool.running) == ("cancelled", {})


async def test_cancellation_that_the_feed_never_told_reaches_the_runner(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    await ledger.feed.close()
    elsewhere(ledger, cmd.Cancel(requested_by="test", ids=("r",)))
    await pool.until(lambda: only(pool) in pool.cancelled)


async def test_attempt_taken_over_without_a_word_from_the_feed_is_stopped(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    key = only(pool)
    await ledger.feed.close()
    lost = cmd.CloseAttempt("r", 1, scheduler.member_id, "lost", "somebody said so")
    elsewhere(ledger, lost)
    await pool.until(lambda: key in pool.cancelled)


async def test_result_that_waits_for_a_full_disk_is_kept_when_the_other_attempts_are_stopped(
    ledger: Ledger, database_url: str, pool: PlayedPool
) -> None:
    scheduler = Scheduler(ledger, settings(ledger, beat_lost_after_sec=0.0), pool, on_broken=pytest.fail)
    await scheduler.start()
    await admit(ledger, "done")
    await admit(ledger, "running")
    await pool.until(lambda: len(pool.running) == 2)
    keys = {assignment.rollout_id: key for key, assignment in pool.running.items()}
    with unwritable(database_url):
        pool.end(keys["done"], Finished(keys["done"], "success", sample=SAMPLE))
        await pool.until(lambda: keys["running"] in pool.cancelled)
    done = await settled(ledger, "done", lambda s: not s.active)
    assert (done.status, done.attempt) == ("success", 1)
    again = await settled(ledger, "running", lambda s: s.attempt == 2)
    assert again.attempts_counted == 1
    await scheduler.stop()


async def test_result_that_the_ledger_cannot_take_ends_its_rollout_as_a_failure(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    beyond = StageSpan("agent", 0, 2**64)
    pool.end(only(pool), Finished(only(pool), "success", sample=SAMPLE, spans=(beyond,)))
    state = await settled(ledger, "r", lambda s: not s.active)
    assert (state.status, state.err_category) == ("failure", "internal_error")
    assert "could not be recorded" in ((await ledger.reader.result(state)).err_message or "")


@pytest.mark.parametrize("on_shutdown", ["release", "cancel"])
async def test_shutdown_ends_though_the_ledger_cannot_be_written(
    ledger: Ledger, database_url: str, pool: PlayedPool, on_shutdown: str
) -> None:
    scheduler = Scheduler(ledger, settings(ledger, on_shutdown=on_shutdown), pool, on_broken=pytest.fail)
    await scheduler.start()
    await admit(ledger, "r")
    await pool.until(lambda: bool(pool.running))
    with unwritable(database_url):
        await scheduler.stop()
    assert pool.stopped
    assert await types(ledger, "r") == ["rollout_admitted", "attempt_started"]
    # Nothing goes on trying behind the scheduler's back.
    assert (await ledger.submit(cmd.TakeOver(dead_after_us=-1))) == 1
    assert await types(ledger, "r") == ["rollout_admitted", "attempt_started", "attempt_ended"]
