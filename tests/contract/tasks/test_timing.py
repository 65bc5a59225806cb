"""PROTOCOL, timing: five spans, closed on every path.

"five spans (boot, setup, agent, finalize, scoring), wall clock start and end; the agent span runs from the end of open
to close and so includes waiting for users (the budget does not). Closed on every exit path, a cancelled open included."
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.hooks import reward
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.tasks.timing import STAGES
from rollbook.traces.trace import Trace
from rollbook_client.events import StageTimed
from tests.contract.tasks.playing import PROMPT, Acting, Agent, Stage, ask_once, played
from tests.support.model_server import Hang, ModelServer, Say


def told(stage: Stage) -> list[tuple[str, int, int | None]]:
    """The spans that were told, in their order."""
    return [(span.stage, span.started_at, span.ended_at) for event in stage.tells(StageTimed) for span in event.spans]


def check_closed(stage: Stage, trace: Trace, *stages: str) -> None:
    """The trace has these spans and no others, each one closed, and each was told once as it ended."""
    assert [span.stage for span in trace.spans] == list(stages)
    for span in trace.spans:
        assert span.ended_at is not None, f"{span.stage} goes on"
        assert span.ended_at >= span.started_at
    assert sorted(told(stage)) == sorted((span.stage, span.started_at, span.ended_at) for span in trace.spans)


async def test_five_spans_follow_each_other(stage: Stage) -> None:
    began = time.time_ns() // 1000
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model))
    ended = time.time_ns() // 1000
    check_closed(stage, trace, *STAGES)
    assert [name for name, _, _ in told(stage)] == list(STAGES)
    moments = [moment for span in trace.spans for moment in (span.started_at, span.ended_at or 0)]
    assert moments == sorted(moments), "a span begins before the one before it has ended"
    assert began <= moments[0]
    assert moments[-1] <= ended


async def test_agent_span_includes_waiting_for_users_and_the_budget_does_not(stage: Stage) -> None:
    moments: list[int] = []
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model)
        await rollout.open()
        opened = time.time_ns() // 1000
        await rollout.step()
        spent_sec = rollout.spent_sec
        while (waited := time.time_ns() // 1000) <= opened:  # a user who says nothing more
            pass
        moments.append(waited)
        assert rollout.spent_sec == spent_sec
        trace = await rollout.close()
    [span] = [span for span in trace.spans if span.stage == "agent"]
    assert span.ended_at is not None
    assert span.started_at <= opened
    assert span.ended_at >= moments[0]


# How each stage can end otherwise: what happens, and which spans there are then.


async def _fails(*_: Any) -> None:
    raise OSError("broken")


async def _never_ends(*_: Any) -> None:
    await asyncio.Event().wait()


class Fails(Task[TaskData]):
    """Fails or hangs at one of its stages."""

    def __init__(self, at: str, how: Callable[..., Any]) -> None:
        self.at, self.how = at, how

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        if self.at == "setup":
            await self.how()

    async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
        if self.at == "finalize":
            await self.how()

    @reward
    async def right(self) -> float:
        if self.at == "scoring":
            await self.how()
        return 1.0


class Unbootable(SubprocessRuntime):
    """A runtime that does not start."""

    how: Callable[..., Any] = _fails

    async def start(self) -> None:
        await super().start()
        await type(self).how()


class Endless(Unbootable):
    """A runtime that never comes up."""

    how = _never_ends


SPANS: dict[str, tuple[str, ...]] = {stage: STAGES[: number + 1] for number, stage in enumerate(STAGES)}
"""The spans of a rollout that came to an end in a stage."""


def _rollout(stage: Stage, model: ModelServer, at: str, how: Callable[..., Any], **options: Any) -> Rollout:
    async def play(agent: Agent) -> None:
        await agent.ask()
        if at == "agent":
            await how()

    def boots() -> Runtime:
        return (Unbootable if how is _fails else Endless)(parent=stage.folder)

    runtime = boots if at == "boot" else None
    return stage.rollout(model, Acting(play), task=Fails(at, how), runtime=runtime, **options)


@pytest.mark.parametrize("at", STAGES)
async def test_spans_are_closed_where_a_stage_fails(stage: Stage, at: str) -> None:
    async with ModelServer(default=Say()) as model:
        trace = await played(_rollout(stage, model, at, _fails))
    assert [error.stage for error in trace.errors] == [at]
    assert not trace.ok
    check_closed(stage, trace, *SPANS[at])


@pytest.mark.parametrize("at", ["boot", "setup"])
async def test_span_of_a_failed_stage_ends_with_it_and_not_with_the_rollout(stage: Stage, at: str) -> None:
    async with ModelServer() as model:
        rollout = _rollout(stage, model, at, _fails)
        assert await rollout.open() is False
        check_closed(stage, rollout.trace, *SPANS[at])
        await rollout.close()


@pytest.mark.parametrize("at", ["setup", "agent", "finalize", "scoring"])
async def test_spans_are_closed_where_a_stage_takes_too_long(stage: Stage, at: str) -> None:
    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(**{at: 0.2}))
    async with ModelServer(default=Say()) as model:
        trace = await played(_rollout(stage, model, at, _never_ends, data=data))
    assert [(error.stage, error.category) for error in trace.errors] == [(at, "timeout")]
    check_closed(stage, trace, *SPANS[at])


@pytest.mark.parametrize("at", STAGES)
async def test_spans_are_closed_where_a_stage_is_cancelled(stage: Stage, at: str) -> None:
    there = asyncio.Event()

    async def waits(*_: Any) -> None:
        there.set()
        await asyncio.Event().wait()

    class Waiting(Unbootable):
        how = waits

    async with ModelServer(default=Say()) as model:
        rollout = _rollout(stage, model, at, waits)
        if at == "boot":
            rollout = stage.rollout(model, runtime=lambda: Waiting(parent=stage.folder))
        running = asyncio.create_task(played(rollout))
        await there.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    check_closed(stage, rollout.trace, *SPANS[at])
    assert stage.left_behind == []


async def test_spans_are_closed_where_the_model_hangs_and_the_rollout_is_aborted(stage: Stage) -> None:
    async with ModelServer(Hang()) as model:
        rollout = stage.rollout(model)
        await rollout.open()
        step = asyncio.create_task(rollout.step())
        await model.wait_for(1)
        step.cancel()
        await asyncio.wait([step])
    check_closed(stage, rollout.trace, "boot", "setup", "agent")


async def test_rollout_that_is_aborted_before_it_was_opened_has_no_spans(stage: Stage) -> None:
    rollout = stage.rollout(None, Acting(ask_once))
    await rollout.abort()
    check_closed(stage, rollout.trace)
    assert stage.told == []
