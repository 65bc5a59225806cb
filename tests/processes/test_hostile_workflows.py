"""Workflows that block, hog, exit or hoard: others go on, polls are answered, beats continue, the end is explained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rollbook.ledger.clock import host_clock_us
from rollbook_client import RolloutClient, RolloutHandle, RolloutResultResponse
from tests.support.processes import CHAT_URL, CHOSEN, Deployment, until

BYSTANDERS = 8
MEMORY_BYTES = 2 << 30


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all: what one hostile workflow does to it is for the next to bear."""
    deployment = Deployment(tmp_path_factory.mktemp("hostile"))
    deployment.api(max_attempts=2)
    deployment.scheduler(stall_after_sec=1.0, runner_memory_bytes=MEMORY_BYTES)
    yield deployment
    deployment.close()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


async def admit(client: RolloutClient, name: str, plan: dict[str, Any], **options: Any) -> RolloutHandle:
    metadata = {**plan, "text": name}
    return await client.run_rollout_async([], CHAT_URL, f"{name}-{uuid4()}", label=name, metadata=metadata, **options)


async def with_bystanders(
    deployment: Deployment, gate: Path, hostile: dict[str, Any], **options: Any
) -> RolloutResultResponse:
    """The hostile rollout's result, with rollouts that are under way before, during and after it."""
    await deployment.answering()
    async with deployment.client() as client:
        # Under way in the same runner, and held there until the hostile one has ended.
        before = [await admit(client, "before", {"until": str(gate)}) for _ in range(BYSTANDERS)]
        await asyncio.gather(*(handle.wait_for_running() for handle in before))
        hostile_handle = await admit(client, "hostile", hostile, **options)
        await hostile_handle.wait_for_running()
        during = [await admit(client, "during", {}) for _ in range(BYSTANDERS)]

        await beats_continue(deployment)
        ended = await hostile_handle
        outcomes = await asyncio.gather(*during)
        gate.touch()
        outcomes += await asyncio.gather(*before)
        outcomes.append(await (await admit(client, "after", {})))
    assert {(outcome.status, outcome.sample and outcome.sample.reward) for outcome in outcomes} == {("success", 1.0)}
    deployment.check_ledger()
    return ended


async def beats_continue(deployment: Deployment) -> None:
    """A beat that is newer than this call, and polls that are answered meanwhile."""
    now = host_clock_us()
    beat = "SELECT max(beat_at) FROM members WHERE kind = 'scheduler' AND stopped_at IS NULL"
    await until(lambda: deployment.number(beat) > now, what="a beat of the scheduler")
    async with deployment.client() as client:
        health = await client.health()
    assert health["status"] == "ok"
    assert health["lifecycle"]["active_rollouts"] > 0


def attempts(deployment: Deployment, rollout_id: str) -> list[tuple[Any, ...]]:
    return deployment.rows("SELECT outcome, reason FROM attempts WHERE rollout_id = ? ORDER BY attempt", rollout_id)


async def test_workflow_that_sleeps_synchronously(deployment: Deployment, gate: Path) -> None:
    ended = await with_bystanders(deployment, gate, {"block_sec": 3600}, agent_timeout_sec=1.0)
    assert (ended.status, ended.err_category) == ("failure", "timeout")
    message = ended.err_message or ""
    assert message.startswith("workflow exceeded its 1.0s deadline: it blocked its runner's event loop in ")
    assert f"{CHOSEN}, line" in message
    assert "in obey" in message
    assert "asyncio.to_thread" in message
    assert len(attempts(deployment, ended.rollout_id)) == 1


async def test_workflow_that_holds_the_interpreters_lock_in_c_code(deployment: Deployment, gate: Path) -> None:
    ended = await with_bystanders(deployment, gate, {"match_for_ever": True}, agent_timeout_sec=1.0)
    assert (ended.status, ended.err_category) == ("failure", "timeout")
    message = ended.err_message or ""
    assert message.startswith("workflow exceeded its 1.0s deadline: it blocked its runner's event loop in ")
    assert "in match_for_ever" in message
    assert len(attempts(deployment, ended.rollout_id)) == 1


async def test_grader_that_sleeps_synchronously(deployment: Deployment, gate: Path) -> None:
    ended = await with_bystanders(deployment, gate, {"grade": {"block_sec": 3600}}, grader_timeout_sec=1.0)
    assert (ended.status, ended.err_category) == ("failure", "timeout")
    assert (ended.err_message or "").startswith("grader exceeded its 1.0s deadline: it blocked its runner's event loop")


async def test_blocking_workflow_without_a_deadline_can_be_cancelled(deployment: Deployment) -> None:
    await deployment.answering()
    async with deployment.client() as client:
        handle = await admit(client, "hostile", {"block_sec": 3600})
        await handle.wait_for_running()
        answer = await client.cancel_rollout(handle.rollout_id)
        assert answer.dispositions == {handle.rollout_id: "cancelled_running"}
        ended = await handle
    assert (ended.status, ended.err_message) == ("cancelled", "cancelled")
    deployment.check_ledger()


async def test_workflow_that_calls_exit_is_tried_again_and_then_named(deployment: Deployment, gate: Path) -> None:
    ended = await with_bystanders(deployment, gate, {"exit": 7})
    assert (ended.status, ended.err_category, ended.sample) == ("failure", "internal_error", None)
    reason = "its runner process exited with code 7 while it ran this rollout's code"
    assert ended.err_message == f"{reason}; the rollout lost all 2 of its attempts"
    assert attempts(deployment, ended.rollout_id) == [("lost", reason), ("lost", reason)]
    # The others' attempts ended with the same processes, but count for nothing.
    released = deployment.rows(
        "SELECT DISTINCT reason FROM attempts WHERE outcome = 'released' AND reason LIKE '%code 7%'"
    )
    assert released == [("its runner process exited with code 7 because of another rollout's code",)]


async def test_workflow_that_allocates_without_end(deployment: Deployment, gate: Path) -> None:
    ended = await with_bystanders(deployment, gate, {"allocate": True})
    assert (ended.status, ended.err_category, ended.sample) == ("failure", "agent_error", None)
    assert (ended.err_message or "").startswith("workflow ran out of memory")


async def test_programs_of_a_workflow_can_be_interrupted(deployment: Deployment) -> None:
    await deployment.answering()
    async with deployment.client() as client:
        ended = await (await admit(client, "program", {"command": "kill -INT $$"}))
    assert ended.err_message == "the command ended with -2"
