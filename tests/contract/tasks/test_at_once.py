"""Several tasks that use one rollout: it does one thing at a time, and whoever ends it ends what another does with it.

Afterwards nothing is left, the trace is saved once and last, and everybody who waited has been told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.interception.messages import Request
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.hooks import intercept, reward
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from rollbook_client.events import TraceSaved
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Acting, Agent, Stage, ask_once
from tests.support.model_server import Hang, ModelServer, Say

type Ending = Callable[[Rollout], Awaitable[Trace | None]]

ENDINGS: dict[str, Ending] = {"close": Rollout.close, "abort": Rollout.abort}


@pytest.fixture(params=ENDINGS)
def end(request: pytest.FixtureRequest) -> Ending:
    return ENDINGS[request.param]


class Waits(Task[TaskData]):
    """Waits for ever in its set-up, its finalize or its reward."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.begun = asyncio.Event()

    async def _wait(self, here: str) -> None:
        if here == self.where:
            self.begun.set()
            await asyncio.Event().wait()

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        await self._wait("setup")

    async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
        await self._wait("finalize")

    @reward
    async def one(self) -> float:
        await self._wait("reward")
        return 1.0


def check_over(rollout: Rollout, stage: Stage) -> None:
    """It is over, freed, and was saved once, as the last that was told of it."""
    assert stage.left_behind == []
    assert all(runtime.stopped for runtime in stage.runtimes)
    assert all(span.ended_at is not None for span in rollout.trace.spans)
    assert len(stage.tells(TraceSaved)) == 1
    assert isinstance(stage.told[-1], TraceSaved)


async def test_rollout_that_is_ended_while_its_agent_runs_ends_the_agent(stage: Stage, end: Ending) -> None:
    async with ModelServer(Hang()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model, task=Waits(""))
        await rollout.open()
        step = asyncio.create_task(rollout.step())
        received = await model.wait_for(1)
        await end(rollout)
        check_over(rollout, stage)
        assert await step is False
        await received.hung_up.wait()
    assert not rollout.trace.ok
    assert rollout.trace.rewards == {}
    if end is Rollout.close:
        assert [error.message for error in rollout.trace.errors] == ["the rollout was closed while its agent ran"]
    check_over(rollout, stage)


async def test_rollout_that_is_ended_while_it_is_opened_is_not_opened(stage: Stage, end: Ending) -> None:
    task = Waits("setup")
    async with asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(None, task=task)
        opening = asyncio.create_task(rollout.open())
        await task.begun.wait()
        await end(rollout)
        check_over(rollout, stage)
        assert await opening is False
        assert await rollout.step() is False
    assert not rollout.trace.ok
    assert stage.endpoint.sessions == []
    if end is Rollout.close:
        assert [error.message for error in rollout.trace.errors] == ["the rollout was closed while it was opened"]


async def test_rollout_that_is_ended_while_its_runtime_starts_leaves_none(stage: Stage, end: Ending) -> None:
    async with asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(None)
        opening = asyncio.create_task(rollout.open())
        while not stage.runtimes:  # noqa: ASYNC110 - a runtime that is made tells nobody
            await asyncio.sleep(0)
        await end(rollout)
        assert await opening is False
    check_over(rollout, stage)


@pytest.mark.parametrize("where", ["finalize", "reward"])
async def test_close_that_is_aborted_by_another_task_gives_up_the_scores_and_returns(stage: Stage, where: str) -> None:
    task = Waits(where)
    async with ModelServer(Say()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model, task=task)
        await rollout.open()
        await rollout.step()
        closing = asyncio.create_task(rollout.close())
        await task.begun.wait()
        await asyncio.gather(rollout.abort(), rollout.abort())
        check_over(rollout, stage)
        trace = await closing
    assert not trace.ok
    assert [error.message for error in trace.errors] == ["the rollout was aborted while it was closed"]
    assert trace.num_turns == 1
    check_over(rollout, stage)


async def test_everyone_who_closes_gets_the_trace_that_is_scored(stage: Stage) -> None:
    released = asyncio.Event()

    class Slow(Task[TaskData]):
        @reward
        async def one(self) -> float:
            await released.wait()
            return 1.0

    async with ModelServer(Say()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model, task=Slow())
        await rollout.open()
        await rollout.step()
        closing = [asyncio.create_task(rollout.close()) for _ in range(3)]
        done, _ = await asyncio.wait(closing, timeout=0.05)
        assert not done
        released.set()
        for close in closing:
            trace = await close
            assert (trace.ok, trace.rewards) == (True, {"one": 1.0})
    check_over(rollout, stage)


async def test_only_one_task_steps_and_the_other_changes_nothing(stage: Stage) -> None:
    gate = asyncio.Event()
    async with ModelServer(Say("42", gate=gate)) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model)
        await rollout.open()
        first = asyncio.create_task(rollout.step())
        await model.wait_for(1)
        with pytest.raises(RuntimeError, match="at work in another task"):
            await rollout.step([{"role": "user", "content": "and mine?"}])
        gate.set()
        assert await first is True
        trace = await rollout.close()
    assert trace.ok
    assert trace.final_branch is not None
    assert [message["content"] for message in trace.final_branch.messages] == [PROMPT, "42"]


async def test_step_while_it_is_opened_is_refused(stage: Stage) -> None:
    task = Waits("setup")
    rollout = stage.rollout(None, task=task)
    opening = asyncio.create_task(rollout.open())
    await task.begun.wait()
    with pytest.raises(RuntimeError, match="at work in another task"):
        await rollout.step()
    await rollout.abort()
    assert await opening is False


async def test_cancellation_of_the_task_that_steps_stays_one_where_another_closes(stage: Stage) -> None:
    async with ModelServer(Hang()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model)
        await rollout.open()
        step = asyncio.create_task(rollout.step())
        await model.wait_for(1)
        closing = asyncio.create_task(rollout.close())
        await asyncio.sleep(0)
        step.cancel()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await step
    check_over(rollout, stage)


@pytest.mark.parametrize("segment", [1, 2])
async def test_interceptor_that_hangs_before_the_agent_has_anything_meets_a_deadline(
    stage: Stage, segment: int
) -> None:
    """That of the set-up for the prompt, the agent's budget for what a user says."""

    class Hangs(Task[TaskData]):
        @intercept
        async def hang(self, request: Request) -> None:
            if len(request.messages) > 2 or segment == 1:
                await asyncio.Event().wait()

    limit = Timeouts(setup=0.1) if segment == 1 else Timeouts(agent=2.0)
    async with ModelServer(default=Say()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(
            model, Acting(ask_once), task=Hangs(), data=TaskData(id="t-1", prompt=PROMPT, timeouts=limit)
        )
        assert await rollout.open() is (segment == 2)
        if segment == 2:
            assert await rollout.step() is True
            assert await rollout.step([{"role": "user", "content": "more"}]) is False
        trace = await rollout.close()
    stage_of_it = "setup" if segment == 1 else "agent"
    assert [(error.stage, error.type) for error in trace.errors] == [(stage_of_it, "TimeoutError")]
    check_over(rollout, stage)


async def test_agent_that_closes_its_own_rollout_is_ended_by_that(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From inside it waits for itself; after its grace it is left behind, and the rollout ends."""
    monkeypatch.setattr("rollbook.tasks.patience.GRACE_SEC", 0.05)
    rollouts: list[Rollout] = []

    async def play(agent: Agent) -> None:
        await rollouts[0].close()

    async with asyncio.timeout(WAIT_SEC):
        rollouts.append(stage.rollout(None, Acting(play)))
        await rollouts[0].open()
        assert await rollouts[0].step() is False
        trace = await rollouts[0].close()
    assert not trace.ok
    check_over(rollouts[0], stage)
