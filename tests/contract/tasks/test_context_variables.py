"""What a task's code sets as context variables is there for what of it runs later, as in one piece of code."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from rollbook.interception.messages import Request
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward, stop
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import Acting, Agent, Stage, played
from tests.support.model_server import ModelServer, Say

bound: ContextVar[str] = ContextVar("bound", default="nothing")


async def test_variable_of_the_setup_is_seen_by_agent_hooks_finalize_and_scores(stage: Stage) -> None:
    seen: dict[str, str] = {}

    class Binds(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            bound.set("by the setup")

        @stop
        async def look(self, request: Request) -> bool:
            seen["stop"] = bound.get()
            return False

        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            seen["finalize"] = bound.get()
            bound.set("by finalize")

        @reward
        async def one(self) -> float:
            seen["reward"] = bound.get()
            return 1.0

    async def play(agent: Agent) -> None:
        seen["agent"] = bound.get()
        await agent.ask()
        bound.set("by the agent")

    async with ModelServer(Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Binds()))
    assert trace.errors == []
    assert seen == {
        "agent": "by the setup",
        "stop": "by the setup",
        "finalize": "by the agent",
        "reward": "by finalize",
    }


async def test_rollouts_side_by_side_see_their_own_variables(stage: Stage) -> None:
    seen: list[str] = []

    class Binds(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            bound.set(data.id)

        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            seen.append(f"{data.id}: {bound.get()}")

    async with ModelServer(default=Say()) as model, asyncio.TaskGroup() as group:
        for name in ("one", "other"):
            rollout = stage.rollout(model, task=Binds(), data=TaskData(id=name, prompt="Hello"))
            group.create_task(played(rollout))
    assert sorted(seen) == ["one: one", "other: other"]
