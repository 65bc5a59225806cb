"""Cancelling executions, what their status says, and the phases and spans they report."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollbook.backends.base import ExecutionOutcome
from rollbook.backends.local import LocalBackend
from rollbook.sdk.context import GraderContext, RolloutContext
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.unit.backends.support import REPLY, WAIT_SEC, Context, make_backend, make_request, replying, until


class Held:
    """A workflow that waits until it is released, and tells when it has been entered."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()

    async def run(self, ctx: Context) -> Any:
        self.entered.set()
        await self.release.wait()
        return [REPLY]


async def start(backend: LocalBackend, held: Held, rollout_id: str) -> asyncio.Task[ExecutionOutcome]:
    held.entered.clear()
    task = asyncio.create_task(backend.execute(make_request(rollout_id)))
    await asyncio.wait_for(held.entered.wait(), WAIT_SEC)
    return task


async def queue(backend: LocalBackend, rollout_id: str) -> asyncio.Task[ExecutionOutcome]:
    task = asyncio.create_task(backend.execute(make_request(rollout_id)))
    await until(lambda: backend.rollout_status(rollout_id) is not None)
    return task


async def test_status_follows_a_rollout_from_queue_to_end() -> None:
    held = Held()
    grading = asyncio.Event()
    graded = asyncio.Event()

    async def grade(ctx: GraderContext) -> Any:
        grading.set()
        await graded.wait()
        ctx.set_reward(1)

    backend = make_backend(held.run, grade, max_concurrent=1)
    assert backend.rollout_status("a") is None
    first = await start(backend, held, "a")
    second = await queue(backend, "b")
    assert backend.rollout_status("a") == {"status": RolloutStatus.RUNNING}
    assert backend.rollout_status("b") == {"status": RolloutStatus.QUEUED}
    assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 1, "running": 1}
    held.release.set()
    await asyncio.wait_for(grading.wait(), WAIT_SEC)
    assert backend.rollout_status("a") == {"status": RolloutStatus.GRADING}
    graded.set()
    await asyncio.gather(first, second)
    assert backend.rollout_status("a") == {"status": RolloutStatus.SUCCESS}


async def test_cancelled_executions_raise_and_say_how_far_they_were() -> None:
    held = Held()
    backend = make_backend(held.run, max_concurrent=1)
    running = await start(backend, held, "run-1")
    waiting = await queue(backend, "run-2")
    expected = {"run-1": "cancelled_running", "run-2": "cancelled_queued", "unknown": "not_found"}
    assert backend.cancel_rollouts(ids=["run-1", "run-2", "unknown"]) == expected
    assert backend.cancel_rollouts(ids=["run-1", "run-2", "unknown"]) == expected
    assert running.cancelling() == 1
    for task in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WAIT_SEC)
    assert backend.cancel_rollouts(ids=["run-1"]) == {"run-1": "not_found"}
    assert backend.rollout_status("run-1") == {"status": RolloutStatus.CANCELLED}
    assert backend.health()["concurrency"] == {"max_concurrent": 1, "queued": 0, "running": 0}


async def test_prefix_and_all_select_what_is_here() -> None:
    held = Held()
    backend = make_backend(held.run)
    tasks = [await start(backend, held, name) for name in ("a-1", "a-2", "b-1")]
    assert backend.cancel_rollouts(ids=[]) == {}
    assert backend.cancel_rollouts(prefix="a-") == {"a-1": "cancelled_running", "a-2": "cancelled_running"}
    assert backend.cancel_rollouts(all=True) == dict.fromkeys(("a-1", "a-2", "b-1"), "cancelled_running")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3
    assert backend.cancel_rollouts(prefix="") == {}


@pytest.mark.parametrize("selectors", [{}, {"ids": [], "all": True}, {"ids": [], "prefix": ""}])
def test_exactly_one_selector_is_needed(selectors: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one selector"):
        make_backend().cancel_rollouts(**selectors)


async def test_task_cancelled_from_outside_propagates_with_a_deadline_running() -> None:
    held = Held()
    backend = make_backend(held.run)
    task = asyncio.create_task(backend.execute(make_request(agent_timeout_sec=600)))
    await asyncio.wait_for(held.entered.wait(), WAIT_SEC)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT_SEC)


async def test_execution_that_returns_although_cancelled_ends_by_its_own_outcome() -> None:
    entered = asyncio.Event()

    async def finishing(ctx: Context) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return [REPLY]

    async def failing(ctx: Context) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("while cleaning up")

    for run, status in ((finishing, RolloutStatus.SUCCESS), (failing, RolloutStatus.FAILURE)):
        entered.clear()
        backend = make_backend(run)
        task = asyncio.create_task(backend.execute(make_request("r")))
        await asyncio.wait_for(entered.wait(), WAIT_SEC)
        backend.cancel_rollouts(ids=["r"])
        assert (await asyncio.wait_for(task, WAIT_SEC)).result.status is status


async def test_users_cancelled_error_after_a_swallowed_cancellation_is_the_graders_failure() -> None:
    entered = asyncio.Event()

    async def run(ctx: Context) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return [REPLY]

    async def grade(ctx: GraderContext) -> Any:
        raise asyncio.CancelledError

    backend = make_backend(run, grade)
    task = asyncio.create_task(backend.execute(make_request("r")))
    await asyncio.wait_for(entered.wait(), WAIT_SEC)
    backend.cancel_rollouts(all=True)
    result = (await asyncio.wait_for(task, WAIT_SEC)).result
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR


async def test_one_id_may_run_twice_and_both_are_cancelled() -> None:
    held = Held()
    backend = make_backend(held.run)
    tasks = [await start(backend, held, "same"), await start(backend, held, "same")]
    assert backend.cancel_rollouts(ids=["same"]) == {"same": "cancelled_running"}
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2


async def test_only_the_latest_ends_are_remembered() -> None:
    backend = make_backend()
    for number in range(1100):
        await backend.execute(make_request(f"r{number}", grade=False))
    assert backend.rollout_status("r0") is None
    assert backend.rollout_status("r1099") == {"status": RolloutStatus.SUCCESS}


async def test_limit_is_never_exceeded_and_can_be_changed() -> None:
    running = peak = 0
    turn = asyncio.Event()

    async def run(ctx: Context) -> Any:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await turn.wait()
        running -= 1
        return [REPLY]

    backend = make_backend(run, max_concurrent=2)
    tasks = [asyncio.create_task(backend.execute(make_request(f"r{number}"))) for number in range(10)]
    await until(lambda: backend.health()["concurrency"]["queued"] == 8)
    assert backend.health()["concurrency"]["running"] == 2
    backend.max_concurrent = 5
    await until(lambda: running == 5)
    turn.set()
    outcomes = await asyncio.gather(*tasks)
    assert peak == 5
    assert {outcome.result.status for outcome in outcomes} == {RolloutStatus.SUCCESS}


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_backend().max_concurrent = limit


async def failing(ctx: Any) -> Any:
    raise ValueError("chosen failure")


async def never(ctx: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("run", "grade", "fields", "phases", "stages"),
    [
        (replying, None, {"grade": False}, ["running"], ["agent"]),
        (replying, None, {}, ["running"], ["agent"]),
        (failing, failing, {}, ["running"], ["agent"]),
        (replying, failing, {}, ["running", "grading"], ["agent", "grading"]),
        (never, failing, {"agent_timeout_sec": 0.01}, ["running"], ["agent"]),
        (replying, never, {"grader_timeout_sec": 0.01}, ["running", "grading"], ["agent", "grading"]),
    ],
)
async def test_phases_and_spans_are_reported_on_every_exit(
    run: Callable[..., Any], grade: Any, fields: dict[str, Any], phases: list[str], stages: list[str]
) -> None:
    seen: list[RolloutStatus] = []
    with RolloutContext(on_phase=seen.append) as context:
        outcome = await make_backend(run, grade).execute(make_request(**fields))
    assert seen == phases
    assert [span.stage for span in outcome.spans] == stages
    assert tuple(context.spans) == outcome.spans
    ends = [moment for span in outcome.spans for moment in (span.started_at, span.ended_at)]
    assert ends == sorted(ends)
    assert ends[0] > 1_500_000_000_000_000  # microseconds since the epoch


async def test_waiting_for_a_slot_is_a_span_of_its_own() -> None:
    held = Held()
    backend = make_backend(held.run, max_concurrent=1)
    first = await start(backend, held, "a")
    second = await queue(backend, "b")
    held.release.set()
    assert [span.stage for span in (await first).spans] == ["agent", "grading"]
    assert [span.stage for span in (await second).spans] == ["queue", "agent", "grading"]


async def test_cancelled_execution_leaves_its_spans_in_the_context() -> None:
    held = Held()
    backend = make_backend(held.run)
    with RolloutContext() as context:
        task = await start(backend, held, "r")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT_SEC)
    assert [span.stage for span in context.spans] == ["agent"]
