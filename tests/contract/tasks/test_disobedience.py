"""Code of a task that catches its cancellation, or hangs while it cleans up: its rollout ends all the same.

Every deadline holds, the trace names it, a cancellation stays one, and what is late changes nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.hooks import intercept, metric, reward, stop
from rollbook.tasks.judge import Judge
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset
from rollbook.traces.storage import dumps
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Acting, Agent, Stage, WatchedEndpoint, ask_once
from tests.support.model_server import ModelServer, Say

SHORT_SEC = 0.05


class Deaf:
    """Something that goes on until it is released, whoever cancels it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.ended = asyncio.Event()

    async def go_on(self) -> None:
        """Hear nothing."""
        self.begun.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        self.ended.set()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.tasks.patience.GRACE_SEC", SHORT_SEC)
    monkeypatch.setattr("rollbook.interception.session.COMMIT_SEC", SHORT_SEC)
    monkeypatch.setattr("rollbook.tasks.rollout.CLEAN_UP_SEC", SHORT_SEC)


@pytest.fixture
async def deaf() -> AsyncIterator[Deaf]:
    made = Deaf()
    yield made
    made.released.set()
    if made.begun.is_set():
        await asyncio.wait_for(made.ended.wait(), WAIT_SEC)


def data(**timeouts: float) -> TaskData:
    return TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(**timeouts))


async def ended(rollout: Rollout) -> Trace:
    """Open, one step, close, within the time that a test has."""
    async with asyncio.timeout(WAIT_SEC):
        if await rollout.open():
            await rollout.step()
        return await rollout.close()


async def check_is_over(rollout: Rollout, deaf: Deaf, stage: Stage) -> None:
    """What was left behind ends, and the trace stays as it was."""
    assert stage.left_behind == []
    assert all(span.ended_at is not None for span in rollout.trace.spans)
    before, told = dumps(rollout.trace), len(stage.told)
    deaf.released.set()
    await asyncio.wait_for(deaf.ended.wait(), WAIT_SEC)
    for _ in range(50):
        await asyncio.sleep(0)
    assert dumps(rollout.trace) == before
    assert len(stage.told) == told


async def test_setup_that_ignores_its_deadline_fails_the_rollout(stage: Stage, deaf: Deaf) -> None:
    class Sets(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            await deaf.go_on()

    rollout = stage.rollout(None, task=Sets(), data=data(setup=SHORT_SEC))
    trace = await ended(rollout)
    assert [(error.stage, error.type) for error in trace.errors] == [("setup", "TimeoutError")]
    await check_is_over(rollout, deaf, stage)


async def test_agent_that_ignores_its_budget_fails_the_rollout(stage: Stage, deaf: Deaf) -> None:
    async def play(agent: Agent) -> None:
        await deaf.go_on()

    rollout = stage.rollout(None, Acting(play), data=data(agent=SHORT_SEC))
    trace = await ended(rollout)
    assert [(error.stage, error.type) for error in trace.errors] == [("agent", "TimeoutError")]
    await check_is_over(rollout, deaf, stage)


async def test_finalize_that_ignores_its_deadline_fails_the_rollout(stage: Stage, deaf: Deaf) -> None:
    class Finalizes(Task[TaskData]):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            await deaf.go_on()

    async with ModelServer(Say()) as model:
        rollout = stage.rollout(model, task=Finalizes(), data=data(finalize=SHORT_SEC))
        trace = await ended(rollout)
    assert [(error.stage, error.type) for error in trace.errors] == [("finalize", "TimeoutError")]
    await check_is_over(rollout, deaf, stage)


class DeafJudge(Judge):
    """A judge that goes on."""

    def __init__(self, deaf: Deaf) -> None:
        super().__init__("slow", "model", rubric="whatever")
        self._deaf = deaf

    async def score(self, data: Any, trace: Trace) -> float:
        await self._deaf.go_on()
        return 1.0


def scored_by(kind: str, deaf: Deaf) -> Task[Any]:
    class Metric(Task[TaskData]):
        @metric
        async def slow(self) -> float:
            await deaf.go_on()
            return 1.0

    class Reward(Task[TaskData]):
        @metric
        def quick(self) -> float:
            return 2.0

        @reward
        def broken(self) -> float:
            raise ValueError("this one says why")

        @reward
        async def slow(self) -> float:
            await deaf.go_on()
            return 1.0

    class Judged(Task[TaskData]):
        judges = (DeafJudge(deaf),)

    return {"metric": Metric, "reward": Reward, "judge": Judged}[kind]()


@pytest.mark.parametrize("kind", ["metric", "reward", "judge"])
async def test_score_that_ignores_the_deadline_stays_null_and_keeps_the_others(
    stage: Stage, deaf: Deaf, kind: str
) -> None:
    async with ModelServer(Say()) as model:
        rollout = stage.rollout(model, task=scored_by(kind, deaf), data=data(scoring=SHORT_SEC))
        trace = await ended(rollout)
    assert (trace.rewards | trace.metrics)["slow"] is None
    assert not trace.ok
    assert trace.errors[-1].type == "TimeoutError"
    if kind == "reward":
        assert trace.metrics == {"quick": 2.0}
        assert "this one says why" in trace.errors[0].message
    await check_is_over(rollout, deaf, stage)


class Holds(ChatHarness):
    """Has something to end."""

    def __init__(self, where: str, deaf: Deaf) -> None:
        super().__init__()
        self._where, self._deaf = where, deaf

    async def close(self) -> None:
        if self._where == "close":
            await self._deaf.go_on()

    async def clean_up(self) -> None:
        if self._where == "clean_up":
            await self._deaf.go_on()


@pytest.mark.parametrize("where", ["close", "clean_up"])
async def test_harness_that_does_not_end_keeps_nobody(stage: Stage, deaf: Deaf, where: str) -> None:
    async with ModelServer(Say()) as model:
        rollout = stage.rollout(model, Holds(where, deaf))
        trace = await ended(rollout)
    assert trace.ok
    assert trace.num_turns == 1
    await check_is_over(rollout, deaf, stage)


def hooked(kind: str, deaf: Deaf) -> Task[Any]:
    class RequestInterceptor(Task[TaskData]):
        @intercept
        async def slow(self, request: Request, trace: Trace) -> None:
            if len(request.messages) > 1:
                await deaf.go_on()

    class RequestStop(Task[TaskData]):
        @stop
        async def slow(self, request: Request) -> bool:
            await deaf.go_on()
            return False

    class TraceStop(Task[TaskData]):
        @stop
        async def slow(self, trace: Trace) -> bool:
            await deaf.go_on()
            return False

    class ResponseInterceptor(Task[TaskData]):
        @intercept
        async def slow(self, response: Response) -> None:
            await deaf.go_on()

    class ResponseStop(Task[TaskData]):
        @stop
        async def slow(self, response: Response) -> bool:
            await deaf.go_on()
            return False

    return {
        "request interceptor": RequestInterceptor,
        "request stop": RequestStop,
        "trace stop": TraceStop,
        "response interceptor": ResponseInterceptor,
        "response stop": ResponseStop,
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "turns", "streamed"),
    [
        ("request interceptor", 0, False),
        ("request stop", 0, False),
        ("trace stop", 0, False),
        ("response interceptor", 1, False),
        ("response interceptor", 1, True),
        ("response stop", 1, True),
    ],
)
async def test_hook_that_does_not_end_keeps_no_rollout(
    stage: Stage, deaf: Deaf, kind: str, turns: int, streamed: bool
) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask({"role": "user", "content": "and this"}, streamed=streamed)

    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, Acting(play), task=hooked(kind, deaf), data=data(agent=1.0))
        trace = await ended(rollout)
        assert len(model.received) == turns, "the model was asked after the rollout was over"
        assert [(error.stage, error.type) for error in trace.errors] == [("agent", "TimeoutError")]
        assert trace.num_turns == turns
        await check_is_over(rollout, deaf, stage)
        assert len(model.received) == turns


async def test_tool_that_does_not_end_keeps_no_rollout(stage: Stage, deaf: Deaf) -> None:
    async def look() -> str:
        """Look."""
        await deaf.go_on()
        return "seen"

    class Tools(Task[TaskData]):
        toolsets = (Toolset(look),)

    async with ModelServer(Say(None, tool_calls=[("call-1", "look", "{}")])) as model:
        rollout = stage.rollout(model, ChatHarness(), task=Tools(), data=data(agent=1.0))
        trace = await ended(rollout)
    assert [(error.stage, error.type) for error in trace.errors] == [("agent", "TimeoutError")]
    await check_is_over(rollout, deaf, stage)


async def test_error_of_a_clean_up_does_not_take_a_cancellations_place(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def play(agent: Agent) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("the clean-up broke")

    rollout = stage.rollout(None, Acting(play))
    await rollout.open()
    step = asyncio.create_task(rollout.step())
    await begun.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert stage.left_behind == []
    assert "the clean-up broke" in caplog.text


async def test_cancelled_again_and_again_it_has_its_grace_and_ends(stage: Stage, deaf: Deaf) -> None:
    async def play(agent: Agent) -> None:
        await deaf.go_on()

    rollout = stage.rollout(None, Acting(play))
    await rollout.open()
    step = asyncio.create_task(rollout.step())
    await deaf.begun.wait()
    for _ in range(5):
        step.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(step, WAIT_SEC)
    assert stage.left_behind == []
    await check_is_over(rollout, deaf, stage)


async def test_what_is_left_behind_is_named_in_the_log(
    stage: Stage, deaf: Deaf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with ModelServer(Say()) as model:
        rollout = stage.rollout(model, task=scored_by("reward", deaf), data=data(scoring=SHORT_SEC))
        await ended(rollout)
    assert "@reward Reward.slow was cancelled and has not ended" in caplog.text.replace("scored_by.<locals>.", "")


async def test_system_exit_of_a_hook_ends_no_event_loop(stage: Stage) -> None:
    class Exits(Task[TaskData]):
        @reward
        async def out(self) -> float:
            raise SystemExit(3)

        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            await asyncio.sleep(0)

    class Leaves(Harness):
        async def run(self, exchange: Exchange) -> None:
            raise SystemExit(4)

    async with ModelServer(Say()) as model:
        trace = await ended(stage.rollout(model, Acting(ask_once), task=Exits()))
    assert "SystemExit(3)" in trace.errors[0].message
    trace = await ended(stage.rollout(None, Leaves()))
    assert "SystemExit(4)" in trace.errors[0].message


async def test_endpoint_closes_though_a_tool_does_not_end(endpoint: WatchedEndpoint, stage: Stage, deaf: Deaf) -> None:
    async def look() -> str:
        """Look."""
        await deaf.go_on()
        return "seen"

    class Tools(Task[TaskData]):
        toolsets = (Toolset(look),)

    async def play(agent: Agent) -> None:
        assert agent.exchange.tools_url is not None
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look", "arguments": {}}}
        await agent.post(agent.exchange.tools_url, call)

    rollout = stage.rollout(None, Acting(play), task=Tools(), data=data(agent=1.0))
    trace = await ended(rollout)
    assert [(error.stage, error.type) for error in trace.errors] == [("agent", "TimeoutError")]
    async with asyncio.timeout(WAIT_SEC):
        await endpoint.close()
    await check_is_over(rollout, deaf, stage)
