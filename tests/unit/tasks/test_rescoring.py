"""Stored traces are scored once more by the task as it is now, without anything else of their rollout."""

from __future__ import annotations

import asyncio
import json

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import metric, reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.rescoring import need_a_runtime, rescored, why_unscored
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.cutting import cuts
from rollbook.traces.storage import pack, unpack
from rollbook.traces.trace import Span, Trace, TraceError
from tests.support.saved_traces import Sums, played
from tests.unit.tasks.support import grader, verdict


def error(stage: str) -> TraceError:
    return TraceError(stage=stage, type="ValueError", message="too bad", category="validation_error")


async def test_scores_are_those_of_the_task_alone() -> None:
    trace = played("42", rewards={"old": 1.0}, metrics={"exit_code": 0.0}, weights={"old": 2.0})
    result = await rescored(unpack(pack(trace)), Sums())
    assert result.rewards == {"right": 1.0, "short": 1.0}
    assert result.metrics == {"length": 2.0}
    assert result.weights == {"right": 0.5, "short": 0.5}
    assert result.reward == 1.0
    assert (result.errors, result.lost, result.whole) == ((), (), True)


async def test_a_score_that_does_not_come_back_is_null() -> None:
    result = await rescored(played("forty-two it is"), Sums())
    assert result.rewards == {"right": 0.0, "short": None}
    assert result.reward == 0.0
    assert (result.errors, result.lost, result.whole) == ((), (), True)


async def test_a_method_that_raises_or_needs_a_runtime_loses_only_its_own_score(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Careless(Task[TaskData]):
        @reward
        def fails(self, trace: Trace) -> float:
            raise ValueError("no")

        @reward
        async def runs(self, runtime: Runtime) -> float:
            return 1.0

        @reward
        def works(self, trace: Trace) -> float:
            return 0.5

        @metric
        def counts(self) -> dict[str, float]:
            return {"one": 1.0, "two": float("nan")}

        @metric
        async def can_do_without(self, runtime: Runtime | None) -> None:
            return None

    assert need_a_runtime(Careless()) == ["@reward Careless.runs"]
    result = await rescored(played(), Careless())
    assert result.rewards == {"fails": None, "runs": None, "works": 0.5}
    assert result.metrics == {"can_do_without": None, "one": 1.0, "two": None}
    assert result.reward == 0.5
    assert result.lost == ("@metric Careless.counts", "@reward Careless.fails", "@reward Careless.runs")
    assert not result.whole
    said = {who: [found.message for found in result.errors if found.message.startswith(who)] for who in result.lost}
    assert [len(messages) for messages in said.values()] == [1, 1, 1]
    assert "asks for the runtime" in said["@reward Careless.runs"][0]
    assert __file__ in said["@reward Careless.fails"][0]
    assert not caplog.records, "a traceback for each of many traces"


async def test_the_scoring_timeout_leaves_what_came_before_it() -> None:
    class Slow(Task[TaskData]):
        @metric
        def quick(self) -> float:
            return 1.0

        @reward
        async def never(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    trace = played()
    trace.task["timeouts"] = {"scoring": 0.05}
    result = await asyncio.wait_for(rescored(trace, Slow()), 20)
    assert (result.rewards, result.metrics, result.reward) == ({"never": None}, {"quick": 1.0}, None)
    assert result.lost == ("@reward Slow.never",)
    (late,) = result.errors
    assert (late.type, late.message) == ("TimeoutError", "scoring exceeded its 0.05s deadline")


async def test_the_errors_of_the_scoring_before_are_gone_for_the_methods() -> None:
    seen: list[list[TraceError]] = []

    class Looking(Task[TaskData]):
        @reward
        def looks(self, trace: Trace) -> float:
            seen.append(list(trace.errors))
            return 1.0

    await rescored(played(ok=False, errors=[error("scoring")]), Looking())
    assert seen == [[]]


async def test_data_that_does_not_fit_the_task_is_named() -> None:
    trace = played()
    del trace.task["answer"]
    with pytest.raises(ValueError, match="answer"):
        await rescored(trace, Sums())


async def test_a_state_that_cannot_be_made_is_an_error_of_this_trace() -> None:
    class Stateless(Sums):
        def new_state(self) -> None:
            raise OSError("no disk")

    result = await rescored(played(), Stateless())
    assert result.rewards == {"right": None, "short": None}
    assert [found.message for found in result.errors] == ["no disk"]
    assert (result.lost, result.whole) == ((), False)


async def test_judges_are_asked_and_their_calls_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged(Task[TaskData]):
        judges = (Judge("style", "grader-1", rubric="Is it nice?"),)

    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    async with grader(verdict(json.dumps({"reason": "it is", "score": 0.75}), usage=usage)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        result = await rescored(played(), Judged())
    assert result.rewards == {"style": 0.75}
    (call,) = result.usage
    assert (call.purpose, call.usage and call.usage.total_tokens) == ("judge:style", 34)


async def test_a_judge_that_fails_leaves_null_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged(Task[TaskData]):
        judges = (Judge("style", "grader-1", rubric="Is it nice?"),)

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    result = await rescored(played(), Judged())
    assert (result.rewards, result.reward) == ({"style": None}, None)
    assert result.lost == ("the judge style",)
    assert ["style" in found.message for found in result.errors] == [True]


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (played(), None),
        (played(stop_condition="max_turns"), None),
        (played(ok=False, errors=[error("scoring")]), None),
        (played(ok=False, errors=[error("agent")]), "its run failed in agent: too bad"),
        (played(ok=False, errors=[error("finalize")]), "its run failed in finalize: too bad"),
        (played(ok=False), None),
        (played(ok=False, spans=[Span("agent", 1, 2)]), "its run was ended before it was scored"),
    ],
    ids=["ok", "stopped", "scoring failed", "agent failed", "finalize failed", "cut short in scoring", "cut short"],
)
def test_what_was_not_to_be_scored_then_is_not_now(trace: Trace, why: str | None) -> None:
    assert why_unscored(trace) == why


def test_trace_that_was_cut_for_its_size_is_not_scored_again() -> None:
    for cut in cuts(played("42", ok=True), "it was too large"):
        why = why_unscored(cut)
        assert why is not None
        assert why.startswith("its trace was saved without ")


async def test_score_that_a_method_puts_into_the_trace_is_null_where_it_is_no_number() -> None:
    class Puts(Task[TaskData]):
        @reward
        def fine(self, trace: Trace) -> float:
            trace.rewards["odd"] = float("nan")
            return 1.0

    scores = await rescored(played("42"), Puts())
    assert scores.rewards == {"fine": 1.0, "odd": None}
    assert [error.message for error in scores.errors] == [
        "rewards['odd'] of the trace is nan; put a finite number there"
    ]
