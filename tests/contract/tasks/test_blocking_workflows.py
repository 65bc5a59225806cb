"""Workflows that block their event loop: they run as elsewhere, and hold up neither the model nor the budget."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading

import httpx
import pytest

from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext, get_rollout_context
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.harnesses.workflow import WorkflowHarness
from rollbook.tasks.harnesses.workflow_loop import WorkflowLoop
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Stage, played
from tests.support.model_server import Hang, ModelServer, Say

type Context = AgentWorkflowContext[AgentWorkflowConfig]

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def ask(messages: list[MessageDict]) -> str:
    """Ask the model with a client that blocks."""
    ambient = get_rollout_context()
    assert ambient is not None
    headers = {"Authorization": f"Bearer {ambient.api_key}"}
    body = {"model": "m", "messages": messages}
    answer = httpx.post(ambient.chat_completions_url, json=body, headers=headers, timeout=None, trust_env=False)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


class Blocks(AgentWorkflow[AgentWorkflowConfig]):
    """Calls the model synchronously."""

    async def run(self, ctx: Context) -> None:
        ask(ctx.prompt)


async def test_workflow_with_a_synchronous_client_gets_its_answer(stage: Stage) -> None:
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, WorkflowHarness(Blocks)))
    assert trace.errors == []
    assert trace.num_turns == 1


async def test_workflow_that_blocks_past_its_budget_is_late_and_ends_with_its_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.tasks.harnesses.workflow_loop.GRACE_SEC", 0.05)
    ended = threading.Event()

    class Stuck(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            try:
                ask(ctx.prompt)
            finally:
                ended.set()

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=0.3))
    async with ModelServer(Hang()) as model:
        trace = await played(stage.rollout(model, WorkflowHarness(Stuck), data=data))
        assert await asyncio.to_thread(ended.wait, WAIT_SEC), "it still waits for a call of a rollout that is over"
    assert [error.category for error in trace.errors] == ["timeout"]
    assert stage.left_behind == []


async def test_workflow_that_would_end_the_process_ends_itself(stage: Stage) -> None:
    class Exits(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            sys.exit(3)

    harness = WorkflowHarness(Exits)
    for _ in range(2):
        trace = await played(stage.rollout(None, harness))
        assert "would end the whole process" in trace.errors[0].message


async def test_cancelled_workflow_cleans_up_before_its_runtime_is_gone(stage: Stage) -> None:
    there = threading.Event()
    cleaned: list[bool] = []

    class Tidy(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            there.set()
            try:
                await asyncio.Event().wait()
            finally:
                assert ctx.artifacts_dir is not None
                cleaned.append(ctx.artifacts_dir.is_dir())

    rollout = stage.rollout(None, WorkflowHarness(Tidy))
    await rollout.open()
    step = asyncio.create_task(rollout.step())
    assert await asyncio.to_thread(there.wait, WAIT_SEC)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert cleaned == [True]
    assert stage.left_behind == []


async def test_workflows_of_a_harness_share_a_loop_and_have_their_callers_context(stage: Stage) -> None:
    seen: list[tuple[str, asyncio.AbstractEventLoop]] = []

    class Looks(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            seen.append((who.get(), asyncio.get_running_loop()))

    harness = WorkflowHarness(Looks)
    for name in ("one", "two"):
        who.set(name)
        await played(stage.rollout(None, harness))
    assert [name for name, _ in seen] == ["one", "two"]
    assert seen[0][1] is seen[1][1]
    assert seen[0][1] is not asyncio.get_running_loop()


async def test_loop_of_workflows_ends_with_its_harness(stage: Stage) -> None:
    class Idle(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            return None

    before = set(threading.enumerate())
    rollout = stage.rollout(None, WorkflowHarness(Idle))
    await played(rollout)
    [thread] = [thread for thread in set(threading.enumerate()) - before if thread.name == "rollbook-workflows"]
    del rollout
    gc.collect()
    await asyncio.to_thread(thread.join, WAIT_SEC)
    assert not thread.is_alive()


async def test_workflow_that_is_cancelled_before_it_began_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    blocked, released = threading.Event(), threading.Event()

    async def blocks() -> None:
        blocked.set()
        released.wait(WAIT_SEC)

    async def never() -> None:
        raise AssertionError("it began")

    loop = WorkflowLoop()
    first = asyncio.create_task(loop.run(blocks))
    await asyncio.to_thread(blocked.wait, WAIT_SEC)
    second = asyncio.create_task(loop.run(never))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    released.set()
    await asyncio.wait([first, second])
    first.result()
    assert second.cancelled()
    assert "goes on" not in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_task_of_a_workflow_that_exits_takes_no_other_with_it(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    async def leave() -> None:
        raise error(3)

    class Leaves(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> None:
            task = asyncio.create_task(leave())
            await asyncio.wait([task])
            assert isinstance(task.exception(), error)
            ask(ctx.prompt)

    harness = WorkflowHarness(Leaves)
    async with ModelServer(default=Say("42")) as model:
        for _ in range(2):
            async with asyncio.timeout(WAIT_SEC):
                trace = await played(stage.rollout(model, harness))
            assert trace.errors == []
            assert trace.num_turns == 1
    assert error.__name__ in caplog.text
