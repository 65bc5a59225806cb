"""Scores: seeded nulls, groups one after the other, mappings, errors that cost one score only, and no runtime."""

import asyncio
import math
from typing import Any

import pytest

from rollbook.tasks.arguments import Given
from rollbook.tasks.data import TaskData
from rollbook.tasks.errors import TaskError
from rollbook.tasks.hooks import Hooked, Kind, metric, reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.scoring import score, seed_scores
from rollbook.tasks.task import Task
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Trace, TraceError
from tests.unit.tasks.support import WAIT_SEC, given_to, grader, played, verdict


async def scored(
    task: Task[Any], *, harness: object = None, trace: Trace | None = None
) -> tuple[Trace, list[TraceError]]:
    given = given_to(task, trace=trace or played(), state=task.new_state())
    return given.trace, await score(given, task, harness)


class Sums(Task[TaskData]):
    @metric
    def turns(self, trace: Trace) -> int:
        return trace.num_turns

    @reward(weight=2)
    async def right(self, trace: Trace, data: TaskData) -> bool:
        return bool(trace.nodes[-1].message["content"] == data.answer)

    @reward(weight=0.5)
    def brief(self) -> str:
        return "0.25"


async def test_scores_and_weights_are_in_the_trace_as_numbers() -> None:
    trace, errors = await scored(Sums())
    assert errors == []
    assert trace.metrics == {"turns": 1.0}
    assert trace.rewards == {"right": 1.0, "brief": 0.25}
    assert trace.weights == {"right": 2.0, "brief": 0.5}
    assert trace.reward == 2.125
    assert all(type(value) is float for value in [*trace.rewards.values(), *trace.metrics.values()])


def test_every_expected_name_is_seeded_as_null() -> None:
    trace = played(rewards={"old": 1.0}, metrics={"older": 2.0}, weights={"old": 3.0})

    class Judged(Sums):
        judges = (Judge("style", "m", rubric="r", weight=3),)

    seed_scores(trace, Judged(), Measured())
    assert trace.rewards == {"brief": None, "right": None, "style": None}
    assert trace.metrics == {"turns": None, "calls": None}
    assert trace.weights == {"brief": 0.5, "right": 2.0, "style": 3.0}
    assert trace.reward is None


class Measured(Hooked):
    """What a harness looks like to scoring."""

    hook_kinds = frozenset[Kind]({"metric"})

    @metric
    def calls(self, trace: Trace) -> int:
        return len(trace.calls)


async def test_harness_is_scored_by_its_own_metrics() -> None:
    trace, errors = await scored(Sums(), harness=Measured())
    assert (trace.metrics, errors) == ({"turns": 1.0, "calls": 1.0}, [])


async def test_metric_that_task_and_harness_both_have_is_refused() -> None:
    class Clashing(Task[TaskData]):
        @metric
        def calls(self) -> int:
            return 0

    with pytest.raises(TaskError, match="both have the metric 'calls'"):
        await scored(Clashing(), harness=Measured())


async def test_judge_set_on_an_object_clashes_like_one_of_its_class() -> None:
    task = Sums()
    task.judges = (Judge("right", "m", rubric="r"),)
    with pytest.raises(TaskError, match="the judge 'right' has the name of @reward right"):
        await scored(task)


async def test_metrics_are_there_for_rewards_and_rewards_for_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Looking(Judge):
        def messages(self, data: Any, trace: Trace) -> list[dict[str, Any]]:
            seen.append(dict(trace.rewards))
            return super().messages(data, trace)

    class Built(Task[TaskData]):
        judges = (Looking("style", "m", rubric="r"),)

        @metric
        async def late(self) -> float:
            await asyncio.sleep(0)
            return 5.0

        @reward
        def of_metric(self, trace: Trace) -> float | None:
            return trace.metrics["late"]

    async with grader(verdict('{"score": 0.5}')) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        trace, errors = await scored(Built())
    assert errors == []
    assert seen == [{"of_metric": 5.0, "style": None}]
    assert trace.rewards == {"of_metric": 5.0, "style": 0.5}


async def test_methods_of_a_group_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    class Meeting(Task[TaskData]):
        @reward
        async def one(self) -> float:
            await both.wait()
            return 1.0

        @reward
        async def two(self) -> float:
            await both.wait()
            return 2.0

    async with asyncio.timeout(WAIT_SEC):
        trace, _ = await scored(Meeting())
    assert trace.rewards == {"one": 1.0, "two": 2.0}


async def test_mapping_stands_in_place_of_the_methods_own_name() -> None:
    class Many(Task[TaskData]):
        @reward
        def a(self) -> float:
            return 1.0

        @reward(weight=3)
        def parts(self) -> dict[str, Any]:
            return {"form": True, "content": 0.5, "style": None}

        @reward
        def z(self) -> float:
            return 0.0

        @metric
        def empty(self) -> dict[str, float]:
            return {}

    trace, errors = await scored(Many())
    assert errors == []
    assert list(trace.rewards.items()) == [("a", 1.0), ("form", 1.0), ("content", 0.5), ("style", None), ("z", 0.0)]
    assert trace.weights == {"a": 1.0, "z": 1.0, "form": 3.0, "content": 3.0, "style": 3.0}
    assert trace.metrics == {}
    assert trace.reward == 1.0 + 3.0 + 1.5


async def test_mapping_may_keep_the_methods_own_name() -> None:
    class Own(Task[TaskData]):
        @reward
        def parts(self) -> dict[str, float]:
            return {"parts": 1.0, "more": 2.0}

    trace, errors = await scored(Own())
    assert (trace.rewards, errors) == ({"parts": 1.0, "more": 2.0}, [])


async def test_method_that_returns_none_has_nothing_to_say() -> None:
    class Silent(Task[TaskData]):
        @reward
        def hook(self) -> None:
            return None

    trace, errors = await scored(Silent())
    assert (trace.rewards, trace.reward, errors) == ({"hook": None}, None, [])


class Faulty(Task[TaskData]):
    @reward
    def good(self) -> float:
        return 1.0

    @reward
    def hook(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ValueError("no such file"), "validation_error"),
        (TimeoutError("too slow"), "timeout"),
        (RuntimeError("broke"), "agent_error"),
        (SystemExit(3), "agent_error"),
        (asyncio.CancelledError(), "agent_error"),
    ],
)
async def test_method_that_raises_loses_only_its_own_score(error: BaseException, category: str) -> None:
    class Raising(Faulty):
        @reward
        def hook(self) -> Any:
            raise error

    trace, errors = await scored(Raising())
    assert trace.rewards == {"good": 1.0, "hook": None}
    assert trace.weights == {"good": 1.0, "hook": 1.0}
    assert trace.reward == 1.0
    assert [(item.stage, item.type, item.category) for item in errors] == [("scoring", type(error).__name__, category)]
    assert errors[0].message.startswith(f"@reward Raising.hook raised {type(error).__name__}: ")


@pytest.mark.parametrize("value", [math.nan, math.inf, "much", object(), [1.0], "nan"])
async def test_value_that_is_no_finite_number_is_an_error_and_leaves_null(value: Any) -> None:
    class Returning(Faulty):
        @reward
        def hook(self) -> Any:
            return value

    trace, [error] = await scored(Returning())
    assert trace.rewards == {"good": 1.0, "hook": None}
    assert "@reward Returning.hook: hook must be a finite number" in error.message
    assert error.category == "validation_error"


async def test_bad_value_in_a_mapping_costs_its_own_name_only() -> None:
    class Returning(Faulty):
        @reward
        def hook(self) -> Any:
            return {"fine": 0.5, "bad": math.nan, 3: 1.0, "good": 9.0}

    trace, errors = await scored(Returning())
    assert trace.rewards == {"good": 1.0, "fine": 0.5, "bad": None}
    assert sorted(error.message.partition(".hook")[2].split(";")[0] for error in errors) == [
        " returned 'good', which another score is called already",
        " returned the name 3 (int)",
        ": bad must be a finite number, got nan",
    ]


async def test_judge_that_fails_leaves_null_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    class Judged(Sums):
        judges = (Judge("style", "m", rubric="r"),)

    trace, errors = await scored(Judged())
    assert errors == []
    assert trace.rewards == {"brief": 0.25, "right": 1.0, "style": None}
    assert trace.reward == 2.125
    [noted] = trace.errors
    assert (noted.stage, noted.type, noted.category) == ("scoring", "JudgeError", "http_error")
    assert noted.message == (
        "the judge style has no endpoint; set OPENAI_BASE_URL to the base URL of an OpenAI-compatible server"
    )


class Placed(Task[TaskData]):
    @reward
    async def inside(self, runtime: Runtime) -> float:
        return 1.0

    @reward
    async def either(self, runtime: Runtime | None) -> float:
        return 0.5 if runtime is None else 1.0


async def test_scoring_without_a_runtime_costs_the_scores_that_need_one() -> None:
    trace, [error] = await scored(Placed())
    assert trace.rewards == {"either": 0.5, "inside": None}
    assert "@reward Placed.inside: it asks for the runtime, and there is none" in error.message
    assert "`Runtime | None`" in error.message


async def test_stored_trace_is_scored_again_from_nothing() -> None:
    first, _ = await scored(Sums())
    stored = loads(dumps(first))
    stored.rewards["gone"] = 9.0

    class Stricter(Sums):
        @reward(weight=4)
        def right(self, trace: Trace) -> float:  # type: ignore[override]  # scores are not called by their callers
            return 0.5

    again, errors = await scored(Stricter(), trace=stored)
    assert errors == []
    assert (again.rewards, again.weights["right"]) == ({"right": 0.5, "brief": 0.25}, 4.0)


async def test_state_is_shared_by_the_methods_of_a_rollout() -> None:
    class Keeping(Task[TaskData]):
        @metric
        def keep(self, state: Any) -> float:
            state.kept = 7
            return 0.0

        @reward
        def use(self, state: Any) -> float:
            return float(state.kept)

    trace, _ = await scored(Keeping())
    assert trace.rewards == {"use": 7.0}


async def test_scoring_that_is_cut_short_keeps_what_it_has() -> None:
    begun = asyncio.Event()

    class Hanging(Task[TaskData]):
        @metric
        def quick(self) -> float:
            return 1.0

        @metric
        def broken(self) -> float:
            raise ValueError("no")

        @reward
        async def slow(self) -> float:
            begun.set()
            await asyncio.Event().wait()
            return 1.0

    task = Hanging()
    given: Given = given_to(task)
    running = asyncio.create_task(score(given, task))
    async with asyncio.timeout(WAIT_SEC):
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert given.trace.metrics == {"quick": 1.0, "broken": None}
    assert given.trace.rewards == {"slow": None}
    [error] = given.trace.errors
    assert error.message.startswith("@metric Hanging.broken raised ValueError: no (")
