"""Hooks that do not return: the agent's time runs out, and it is told what it ran out for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.hooks import intercept, stop
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, Stage, played
from tests.support.model_server import ModelServer, Say


class StopOfRequest(Task[TaskData]):
    """Hangs before the call."""

    @stop
    async def waits(self, request: Request) -> bool:
        return bool(await asyncio.Event().wait())


class StopOfTrace(Task[TaskData]):
    """Hangs before the call."""

    @stop
    async def waits(self, trace: Trace) -> bool:
        return bool(await asyncio.Event().wait())


class InterceptsResponse(Task[TaskData]):
    """Hangs after the answer."""

    @intercept
    async def waits(self, response: Response) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("task", [StopOfRequest, StopOfTrace, InterceptsResponse])
async def test_budget_that_a_hook_used_up_is_told_with_its_name(
    stage: Stage, task: type[Task[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.interception.session.COMMIT_SEC", 0.05)
    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=0.5))
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=task(), data=data))
    [error] = trace.errors
    kind = "@intercept" if task.__name__.startswith("Intercepts") else "@stop"
    assert error.message == f"the agent exceeded its budget of 0.5s while {kind} {task.__name__}.waits had not returned"
    assert error.category == "timeout"
