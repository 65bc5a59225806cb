"""LocalBackend's deadlines: the workflow's with queue time in it, the grader's own, and code that ignores them."""

import asyncio
import time
from typing import Any

import pytest

from rollbook.backends.base import ExecutionOutcome
from rollbook.sdk.context import GraderContext
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.unit.backends.support import REPLY, WAIT_SEC, Context, make_backend, make_request, replying


async def forever(ctx: Any) -> Any:
    await asyncio.Event().wait()


async def stubborn(ctx: Any) -> Any:
    """Outlives its cancellation and returns."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return [REPLY]


async def blocking(ctx: Any) -> Any:
    """Blocks the loop past a deadline of 10 ms and returns."""
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    return [REPLY]


async def failing_late(ctx: Any) -> Any:
    try:
        await asyncio.Event().wait()
    finally:
        raise RuntimeError("while cleaning up")


def assert_timeout(outcome: ExecutionOutcome, message: str) -> None:
    result = outcome.result
    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert result.err_message == message


@pytest.mark.parametrize("run", [forever, stubborn, blocking, failing_late])
async def test_workflow_past_its_deadline_is_a_timeout_however_it_ends(run: Any) -> None:
    outcome = await make_backend(run).execute(make_request(agent_timeout_sec=0.01))
    assert_timeout(outcome, "workflow exceeded its 0.01s deadline")
    assert outcome.result.sample is None
    assert outcome.grader is None


@pytest.mark.parametrize("grade", [forever, stubborn, blocking, failing_late])
async def test_grader_past_its_deadline_is_a_timeout_that_keeps_the_sample(grade: Any) -> None:
    async def grade_and_run_on(ctx: GraderContext) -> Any:
        ctx.set_reward(1.0)
        await grade(ctx)

    outcome = await make_backend(replying, grade_and_run_on).execute(make_request(grader_timeout_sec=0.01))
    assert_timeout(outcome, "grader exceeded its 0.01s deadline")
    assert outcome.result.sample is not None


@pytest.mark.parametrize("timeout_sec", [0, -1.0])
async def test_deadline_of_zero_or_less_has_passed_and_starts_nothing(timeout_sec: float) -> None:
    started: list[Any] = []

    async def run(ctx: Context) -> Any:
        started.append(ctx)
        return [REPLY]

    async def grade(ctx: GraderContext) -> Any:
        started.append(ctx)
        ctx.set_reward(1)

    outcome = await make_backend(run, grade).execute(make_request(agent_timeout_sec=timeout_sec))
    assert_timeout(outcome, f"workflow exceeded its {float(timeout_sec)}s deadline")
    assert started == []
    outcome = await make_backend(replying, grade).execute(make_request(grader_timeout_sec=timeout_sec))
    assert_timeout(outcome, f"grader exceeded its {float(timeout_sec)}s deadline")
    assert started == []


async def test_time_queued_before_counts_against_the_agents_deadline_and_is_named() -> None:
    outcome = await make_backend().execute(make_request(agent_timeout_sec=5, queued_sec=5.25))
    assert_timeout(outcome, "workflow exceeded its 5.0s deadline (5.2s of it queued)")
    outcome = await make_backend(forever).execute(make_request(agent_timeout_sec=5, queued_sec=4.99))
    assert_timeout(outcome, "workflow exceeded its 5.0s deadline (5.0s of it queued)")


async def test_queued_time_does_not_count_against_the_grader() -> None:
    outcome = await make_backend().execute(make_request(queued_sec=1000.0, grader_timeout_sec=60))
    assert outcome.result.status is RolloutStatus.SUCCESS


async def test_deadline_ends_the_wait_for_a_slot_too() -> None:
    release = asyncio.Event()
    entered = asyncio.Event()

    async def run(ctx: Context) -> Any:
        entered.set()
        await release.wait()
        return [REPLY]

    backend = make_backend(run, max_concurrent=1)
    first = asyncio.create_task(backend.execute(make_request("first")))
    await asyncio.wait_for(entered.wait(), WAIT_SEC)
    waiting = await asyncio.wait_for(backend.execute(make_request("second", agent_timeout_sec=0.02)), WAIT_SEC)
    assert waiting.result.err_category is RolloutErrorCategory.TIMEOUT
    # On a slow machine the wait takes longer than it should, and the message then says how long.
    assert (waiting.result.err_message or "").startswith("workflow exceeded its 0.02s deadline")
    assert [span.stage for span in waiting.spans] == ["queue"]
    release.set()
    assert (await first).result.status is RolloutStatus.SUCCESS
    assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 0}


async def test_users_own_timeout_keeps_its_message() -> None:
    async def run(ctx: Context) -> Any:
        raise TimeoutError("the search engine gave up")

    async def inner(ctx: Context) -> Any:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    outcome = await make_backend(run).execute(make_request(agent_timeout_sec=60))
    assert_timeout(outcome, "the search engine gave up")
    result = (await make_backend(inner).execute(make_request(agent_timeout_sec=60))).result
    assert result.err_category is RolloutErrorCategory.TIMEOUT
    assert "deadline" not in (result.err_message or "")


async def test_error_raised_after_blocking_past_the_deadline_keeps_its_message() -> None:
    async def run(ctx: Context) -> Any:
        await blocking(ctx)
        raise ValueError("and then it failed")

    result = (await make_backend(run).execute(make_request(agent_timeout_sec=0.01))).result
    assert result.err_message == "and then it failed"
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR


async def test_result_within_the_deadline_is_a_success() -> None:
    outcome = await make_backend().execute(make_request(agent_timeout_sec=600, grader_timeout_sec=600))
    assert outcome.result.status is RolloutStatus.SUCCESS
