"""The time that a request gives its rollout: what of it is queued, what is left, and what ends by it."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.hooks import reward
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.contract.tasks.playing import NOWHERE, Acting, ask_once
from tests.contract.tasks.serving import Backend, Sums, url_of
from tests.support.model_server import Hang, ModelServer, Say


async def test_requests_time_bounds_the_agent(backend: Backend) -> None:
    async with ModelServer(Hang()) as model:
        outcome = await backend.execute(backend.make(ChatHarness()), url_of(model), agent_timeout_sec=0.3)
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert "exceeded its budget of 0.3s" in (outcome.result.err_message or "")


async def test_time_in_the_queue_counts_against_the_agent(backend: Backend) -> None:
    harness = Acting(ask_once)
    outcome = await backend.execute(backend.make(harness), NOWHERE, agent_timeout_sec=5, queued_sec=5)
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert outcome.result.err_message == "the agent exceeded its 5.0s deadline (5.0s of it queued)"
    assert harness.agents == []


@pytest.mark.parametrize(
    ("own_sec", "said"),
    [
        (None, "its budget of 5s (4.8s of it queued)"),
        (10, "its budget of 5s (4.8s of it queued)"),
        (0.1, "its budget of 0.1s while"),
    ],
    ids=["the request's alone", "the request's", "the task's own"],
)
async def test_budget_of_which_some_was_queued_is_told_with_both(
    backend: Backend, own_sec: float | None, said: str
) -> None:
    row = {"timeouts": {"agent": own_sec}}
    async with ModelServer(Hang()) as model:
        made = backend.make(ChatHarness())
        outcome = await backend.execute(
            made, url_of(model), agent_timeout_sec=5, queued_sec=4.8, metadata={"task": row}
        )
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert (outcome.result.err_message or "").startswith(f"agent: the agent exceeded {said}")


@pytest.mark.parametrize("budget_sec", [0, -3])
async def test_request_whose_time_is_over_already_starts_nothing(backend: Backend, budget_sec: float) -> None:
    harness = Acting(ask_once)
    outcome = await backend.execute(backend.make(harness), NOWHERE, agent_timeout_sec=budget_sec)
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert (harness.agents, backend.told.phases) == ([], [])


@pytest.mark.parametrize("budget_sec", [0, -3])
async def test_request_whose_grading_time_is_over_already_is_played_and_not_scored(
    backend: Backend, budget_sec: float
) -> None:
    async with ModelServer(Say("42")) as model:
        outcome = await backend.execute(backend.make(ChatHarness()), url_of(model), grader_timeout_sec=budget_sec)
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert (outcome.result.err_message or "").startswith("scoring: ")
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward is None


async def test_requests_grader_time_bounds_the_scoring(backend: Backend) -> None:
    class Stuck(Sums):
        @reward
        async def stuck(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    async with ModelServer(Say("42")) as model:
        made = backend.make(ChatHarness(), task=Stuck)
        outcome = await backend.execute(made, url_of(model), grader_timeout_sec=0.1)
    assert outcome.result.err_category is RolloutErrorCategory.TIMEOUT
    assert (outcome.result.err_message or "").startswith("scoring: ")
    assert outcome.result.sample is not None


async def test_rollouts_wait_for_a_slot_and_one_whose_time_is_over_there_fails(backend: Backend) -> None:
    released = asyncio.Event()
    async with ModelServer(Say("42", gate=released), Say("42")) as model:
        made = backend.make(ChatHarness(), max_concurrent=1)
        first = asyncio.create_task(backend.execute(made, url_of(model)))
        await model.wait_for(1)
        late = await backend.execute(made, url_of(model), agent_timeout_sec=0.1)
        waiting = asyncio.create_task(backend.execute(made, url_of(model)))
        await asyncio.sleep(0)  # it is queued at its first turn
        assert made.health()["concurrency"] == {"max_concurrent": 1, "queued": 1, "running": 1}
        released.set()
        outcomes = [await first, await waiting]
    assert late.result.err_category is RolloutErrorCategory.TIMEOUT
    assert [span.stage for span in late.spans] == ["queue"]
    assert [outcome.result.status for outcome in outcomes] == [RolloutStatus.SUCCESS] * 2
    assert made.health() == {"status": "ok", "concurrency": {"max_concurrent": 1, "queued": 0, "running": 0}}
