"""Executions that are cancelled before they began report their end like all others."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rollbook import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, LocalBackend
from rollbook.scheduler.runner.executor import Executor
from rollbook.scheduler.runner.logs import SecretRegistry
from rollbook.scheduler.wire import Assignment, Finished, ToScheduler

REQUEST = msgspec.json.encode({"initial_messages": [], "grade": False})


class Noted(AgentWorkflow[AgentWorkflowConfig]):
    runs = 0

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, object]]:
        type(self).runs += 1
        return []


@pytest.fixture
def reports() -> list[ToScheduler]:
    return []


@pytest.fixture
def executor(reports: list[ToScheduler], monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setattr(Noted, "runs", 0)
    return Executor(LocalBackend(workflow=Noted), SecretRegistry(), reports.append)


def assignment(key: int) -> Assignment:
    return Assignment(key, f"r-{key}", REQUEST, "http://chat.example/", None, 0.0)


async def test_cancelled_in_the_turn_it_arrived_in_ends_as_cancelled(
    executor: Executor, reports: list[ToScheduler]
) -> None:
    # As one read of the pipe brings both after the loop was busy.
    executor.start(assignment(1))
    executor.cancel(1)
    async with asyncio.timeout(10):
        await executor.shut_down()
    assert reports == [Finished(1, "cancelled")]
    assert Noted.runs == 0


async def test_shutting_down_reports_what_had_not_begun(executor: Executor, reports: list[ToScheduler]) -> None:
    executor.start(assignment(1))
    async with asyncio.timeout(10):
        await executor.shut_down()
    assert reports == [Finished(1, "cancelled")]
    assert Noted.runs == 0
