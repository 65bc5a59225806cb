"""PROTOCOL, close: in which order things end, and that no trajectory is lost.

"closing the harness session may fail with a warning only (the trajectory stays); interception and tools go down;
finalize under its own timeout; then task and harness scoring side by side under the scoring timeout; harness clean-up;
tear-down of an owned runtime. Failed runs are not finalized or scored and their score dicts stay empty; stopped runs
are scored. A finalize or scoring failure makes `ok` False. `trace.ok = not failed`, stops do not count. Idempotent;
returns the trace (a borrowed runtime torn down by its owner raises)."
"""

from __future__ import annotations

import asyncio
import base64
import logging
import zlib

import httpx
import pytest

from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.hooks import metric, reward, stop
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Trace
from rollbook_client.events import MetricRecorded, RewardRecorded, TraceSaved
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Acting, Agent, Play, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say


class Told(Task[TaskData]):
    """Says when it was finalized and scored."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log

    async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
        self.log.append("finalize")
        await runtime.run(["true"])

    @metric
    def turns(self, trace: Trace) -> float:
        self.log.append("metric")
        return float(trace.num_turns)

    @reward
    async def right(self, runtime: Runtime) -> float:
        self.log.append("reward")
        return float((await runtime.run(["true"])).exit_code == 0)


class Ending(Acting):
    """A harness that says when it is closed and cleaned up after."""

    def __init__(self, *plays: Play, log: list[str], fails: str | None = None) -> None:
        super().__init__(*plays)
        self.log = log
        self.fails = fails

    async def close(self) -> None:
        self._say("harness close")

    async def clean_up(self) -> None:
        self._say("harness clean-up")

    @metric
    def own(self, trace: Trace) -> float:
        return 7.0

    def _say(self, what: str) -> None:
        self.log.append(what)
        if self.fails == what:
            raise ConnectionError("the transport broke")


async def test_close_ends_things_in_order(stage: Stage) -> None:
    log: list[str] = []

    class Ordered(Told):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            assert stage.endpoint.sessions[0].closed, "the model can still be called while the task is finalized"
            await super().finalize(data, runtime, trace)

    class Last(Ending):
        async def clean_up(self) -> None:
            assert not stage.runtimes[0].stopped
            await super().clean_up()

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Last(ask_once, log=log), task=Ordered(log)))
    assert trace.errors == []
    assert log == ["harness close", "finalize", "metric", "reward", "harness clean-up"]
    assert stage.left_behind == []


async def test_harness_that_cannot_be_closed_costs_a_warning_and_no_trajectory(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    async with ModelServer(Say("42")) as model:
        with caplog.at_level(logging.WARNING):
            trace = await played(stage.rollout(model, Ending(ask_once, log=log, fails="harness close"), task=Told()))
    assert trace.ok
    assert trace.errors == []
    assert trace.rewards == {"right": 1.0}
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1]["content"] == "42"
    assert "the transport broke" in caplog.text
    assert log == ["harness close", "harness clean-up"]


async def test_harness_that_cannot_be_cleaned_up_after_costs_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(Say("42")) as model:
        with caplog.at_level(logging.WARNING):
            trace = await played(stage.rollout(model, Ending(ask_once, log=[], fails="harness clean-up")))
    assert trace.ok
    assert "the transport broke" in caplog.text
    assert stage.left_behind == []


async def test_calls_after_the_end_are_answered_with_410_and_not_recorded(stage: Stage) -> None:
    harness = Acting(ask_once)
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, harness))
        exchange = harness.agents[0].exchange
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{exchange.base_url}/chat/completions", json={"messages": exchange.messages})
        assert len(model.received) == 1
    assert answer.status_code == 410
    assert len(trace.calls) == 1


async def test_call_that_is_on_its_way_when_the_rollout_closes_is_ended_and_recorded(stage: Stage) -> None:
    left: list[asyncio.Future[object]] = []

    async def leaves_a_call(agent: Agent) -> None:
        left.append(asyncio.ensure_future(_elsewhere(agent)))
        await model.wait_for(1)
        await agent.ask()

    async with ModelServer(Say("late", gate=asyncio.Event()), Say()) as model:
        trace = await played(stage.rollout(model, Acting(leaves_a_call), task=Told()))
        await asyncio.wait_for(model.received[0].hung_up.wait(), WAIT_SEC)
        await asyncio.wait(left)
    assert [call.error.kind if call.error else None for call in trace.calls] == [None, "aborted"]
    assert trace.ok
    assert trace.metrics == {"turns": 1.0}


async def _elsewhere(agent: Agent) -> object:
    """A call by a client of its own, which outlives the agent's."""
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
        return await client.post(
            f"{agent.exchange.base_url}/chat/completions", json={"messages": [{"role": "user", "content": "late"}]}
        )


async def test_finalize_has_a_timeout_of_its_own(stage: Stage) -> None:
    class Stuck(Told):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            await asyncio.Event().wait()

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(finalize=0.05))
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Stuck(), data=data))
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("finalize", "TimeoutError", "timeout")
    assert not trace.ok
    assert trace.rewards == {}
    assert trace.num_turns == 1
    assert stage.left_behind == []


async def test_finalize_that_fails_makes_ok_false_and_leaves_the_rollout_unscored(stage: Stage) -> None:
    class Fails(Told):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            await runtime.read("report.txt")

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Fails()))
    assert [(error.stage, error.type) for error in trace.errors] == [("finalize", "FileNotFoundError")]
    assert not trace.ok
    assert (trace.rewards, trace.metrics) == ({}, {})


async def test_task_and_harness_are_scored_side_by_side(stage: Stage) -> None:
    both = asyncio.Barrier(2)

    class Waits(Task[TaskData]):
        @metric
        async def task_waits(self) -> float:
            await both.wait()
            return 1.0

    class WaitsToo(Acting):
        @metric
        async def harness_waits(self) -> float:
            await both.wait()
            return 2.0

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(scoring=WAIT_SEC))
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, WaitsToo(ask_once), task=Waits(), data=data))
    assert trace.metrics == {"task_waits": 1.0, "harness_waits": 2.0}


async def test_scoring_that_takes_too_long_makes_ok_false_and_keeps_what_it_has(stage: Stage) -> None:
    class Stuck(Task[TaskData]):
        @metric
        def quick(self) -> float:
            return 1.0

        @reward
        async def stuck(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(scoring=0.1))
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Stuck(), data=data))
    assert [(error.stage, error.type, error.category) for error in trace.errors] == [
        ("scoring", "TimeoutError", "timeout")
    ]
    assert not trace.ok
    assert trace.metrics == {"quick": 1.0}
    assert trace.rewards == {"stuck": None}
    assert trace.reward is None


async def _breaks(agent: Agent) -> None:
    await agent.ask()
    raise OSError("out of disk")


async def test_failed_run_is_not_finalized_or_scored_and_its_scores_stay_empty(stage: Stage) -> None:
    log: list[str] = []
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Ending(_breaks, log=log), task=Told(log)))
    assert log == ["harness close", "harness clean-up"]
    assert (trace.rewards, trace.metrics, trace.weights) == ({}, {}, {})
    assert trace.reward is None
    assert not trace.ok
    assert stage.tells(RewardRecorded) == []
    assert stage.tells(MetricRecorded) == []


async def test_stopped_run_is_finalized_and_scored_and_ok(stage: Stage) -> None:
    class Stops(Told):
        @stop
        def enough(self, trace: Trace) -> bool:
            return trace.num_turns == 1

    log: list[str] = []

    async def twice(agent: Agent) -> None:
        await agent.ask()
        await agent.ask({"role": "user", "content": "go on"})

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(twice), task=Stops(log)))
    assert trace.stop_condition == "enough"
    assert log == ["finalize", "metric", "reward"]
    assert trace.rewards == {"right": 1.0}
    assert trace.ok


async def test_scores_are_told_with_their_weights_and_nulls(stage: Stage) -> None:
    class Scored(Task[TaskData]):
        @metric
        def lines(self) -> float:
            return 3.0

        @reward(weight=0.5)
        def half(self) -> float:
            return 1.0

        @reward
        def broken(self) -> float:
            raise ZeroDivisionError

    async with ModelServer(Say()) as model:
        await played(stage.rollout(model, task=Scored()))
    assert stage.tells(MetricRecorded) == [MetricRecorded(attempt=0, name="lines", value=3.0)]
    assert sorted(stage.tells(RewardRecorded), key=lambda event: event.name) == [
        RewardRecorded(attempt=0, name="broken", value=None, weight=1.0),
        RewardRecorded(attempt=0, name="half", value=1.0, weight=0.5),
    ]


async def test_close_is_idempotent(stage: Stage) -> None:
    log: list[str] = []
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, Ending(ask_once, log=log), task=Told(log))
        await rollout.open()
        await rollout.step()
        trace = await rollout.close()
        scored, told = dumps(trace), len(stage.told)
        assert await rollout.close() is trace
        await rollout.abort()
    assert dumps(trace) == scored
    assert len(stage.told) == told
    assert log.count("reward") == log.count("harness close") == log.count("harness clean-up") == 1


async def test_rollout_that_was_never_opened_can_be_closed(stage: Stage) -> None:
    log: list[str] = []
    rollout = stage.rollout(None, Ending(log=log), task=Told(log))
    trace = await rollout.close()
    assert trace is rollout.trace
    assert not trace.ok
    assert stage.told == []
    assert trace.spans == []
    assert log == []
    assert stage.runtimes == []


async def test_close_without_scores_leaves_finalize_and_scoring_out(stage: Stage) -> None:
    log: list[str] = []
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, task=Told(log))
        await rollout.open()
        await rollout.step()
        trace = await rollout.close(scored=False)
    assert log == []
    assert trace.ok
    assert trace.rewards == {}


async def test_trace_is_saved_once_and_can_be_loaded(stage: Stage) -> None:
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Told()))
    [saved] = stage.tells(TraceSaved)
    written = zlib.decompress(base64.b64decode(saved.data))
    assert len(written) == saved.size_bytes
    assert loads(written) == trace
    assert stage.told[-1] == saved


@pytest.mark.parametrize("when", ["before close", "in finalize", "in a reward"])
async def test_borrowed_runtime_torn_down_by_its_owner_raises_and_frees_the_rest(stage: Stage, when: str) -> None:
    lent = stage.runtime()
    await lent.start()
    log: list[str] = []

    class Unlucky(Task[TaskData]):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            if when == "in finalize":
                await lent.stop()
                await runtime.run(["true"])

        @reward
        async def right(self, runtime: Runtime) -> float:
            await lent.stop()
            return float((await runtime.run(["true"])).exit_code)

    async with ModelServer(Say("42")) as model:
        rollout = stage.rollout(model, Ending(ask_once, log=log), task=Unlucky(), runtime=lent)
        await rollout.open()
        await rollout.step()
        if when == "before close":
            await lent.stop()
        with pytest.raises(RuntimeStoppedError, match="stopped by its owner"):
            await rollout.close()
    [error] = rollout.trace.errors
    assert (error.type, error.category) == ("RuntimeStoppedError", "internal_error")
    assert "the borrowed runtime has been stopped by its owner" in error.message
    assert error.stage == {"before close": "agent", "in finalize": "finalize", "in a reward": "scoring"}[when]
    [saved] = stage.tells(TraceSaved)
    assert not loads(zlib.decompress(base64.b64decode(saved.data))).ok
    assert log == ["harness close", "harness clean-up"]
    assert stage.left_behind == []
    assert all(span.ended_at is not None for span in rollout.trace.spans)
