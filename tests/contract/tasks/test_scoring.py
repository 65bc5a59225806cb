"""PROTOCOL, scoring: groups, nulls, mappings, judges, the weighted sum.

"`@metric`, then `@reward(weight=…)` methods, then plugged judges, concurrent within each group; before that every
expected name is seeded as null in `rewards`/`metrics` (also on a re-score), so a signal that never came back shows as
null; a method that returns a mapping replaces its own name by its keys. One method that raises loses only its own
score. `trace.reward` = weighted sum of rewards that are not null."
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollbook.tasks.arguments import Given
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import metric, reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.scoring import score
from rollbook.tasks.task import Task
from rollbook.traces.storage import dumps, loads
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import Acting, Stage, ask_once, played
from tests.support.model_server import Die, ModelServer, Raw, Reply, Say, Status


def verdict(score: float) -> Say:
    """A judge's answer."""
    return Say(json.dumps({"reason": "it is", "score": score}), usage={"prompt_tokens": 50, "completion_tokens": 9})


def judge(name: str = "style", **settings: Any) -> Judge:
    """A judge whose endpoint the environment names."""
    return Judge(
        name, "grader-1", rubric="Is it short?", base_url_env="JUDGE_URL", backoff_sec=0.0, tries=2, **settings
    )


async def test_every_expected_name_is_null_before_anything_is_scored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, float | None], dict[str, float | None]]] = []

    class Seeded(Task[TaskData]):
        judges = (judge(),)

        @metric
        def first(self, trace: Trace) -> float:
            seen.append((dict(trace.rewards), dict(trace.metrics)))
            return 1.0

        @reward
        def right(self) -> float:
            return 1.0

    class Measured(Acting):
        @metric
        def own(self) -> float:
            return 2.0

    async with ModelServer(default=Say()) as model, ModelServer(verdict(0.5)) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, Measured(ask_once), task=Seeded()))
    assert seen[0] == ({"right": None, "style": None}, {"first": None, "own": None})
    assert trace.rewards == {"right": 1.0, "style": 0.5}
    assert trace.metrics == {"first": 1.0, "own": 2.0}


async def test_metrics_come_before_rewards_and_rewards_before_judges(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    class Ordered(Task[TaskData]):
        judges = (judge(),)

        @reward
        async def a_reward(self, trace: Trace) -> float:
            assert trace.metrics["z_metric"] == 1.0
            log.append("reward")
            return 1.0

        @metric
        async def z_metric(self) -> float:
            await asyncio.sleep(0)
            log.append("metric")
            return 1.0

    def graded(request: object) -> Reply:
        log.append("judge")
        return verdict(1.0)

    async with ModelServer(default=Say()) as model, ModelServer(default=graded) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Ordered()))
    assert trace.errors == []
    assert log == ["metric", "reward", "judge"]


async def test_scores_of_a_group_run_side_by_side(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, rewards, judged = asyncio.Barrier(2), asyncio.Barrier(2), asyncio.Barrier(2)

    class Together(Task[TaskData]):
        judges = (judge("style"), judge("tone"))

        @metric
        async def m1(self) -> float:
            return float((await metrics.wait()) >= 0)

        @metric
        async def m2(self) -> float:
            return float((await metrics.wait()) >= 0)

        @reward
        async def r1(self) -> float:
            return float((await rewards.wait()) >= 0)

        @reward
        async def r2(self) -> float:
            return float((await rewards.wait()) >= 0)

    async def graded(request: object) -> Reply:
        await judged.wait()
        return verdict(1.0)

    async with ModelServer(default=Say()) as model, ModelServer(default=graded) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Together()))
    assert trace.metrics == {"m1": 1.0, "m2": 1.0}
    assert trace.rewards == {"r1": 1.0, "r2": 1.0, "style": 1.0, "tone": 1.0}


async def test_method_that_raises_loses_only_its_own_score_and_makes_ok_false(stage: Stage) -> None:
    class Partly(Task[TaskData]):
        @metric
        def lines(self) -> float:
            return 3.0

        @reward
        def broken(self) -> float:
            raise ZeroDivisionError("no tests ran")

        @reward
        def right(self) -> float:
            return 1.0

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=Partly()))
    assert trace.rewards == {"broken": None, "right": 1.0}
    assert trace.metrics == {"lines": 3.0}
    assert trace.reward == 1.0
    [error] = trace.errors
    assert (error.stage, error.type) == ("scoring", "ZeroDivisionError")
    assert "Partly.broken" in error.message
    assert not trace.ok


async def test_method_that_returns_a_mapping_is_replaced_by_its_keys(stage: Stage) -> None:
    class Many(Task[TaskData]):
        @reward(weight=2.0)
        def tests(self) -> dict[str, float]:
            return {"unit": 1.0, "lint": 0.5}

        @metric
        def sizes(self) -> dict[str, float | None]:
            return {"lines": 10, "words": None}

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=Many()))
    assert trace.rewards == {"unit": 1.0, "lint": 0.5}
    assert trace.weights == {"unit": 2.0, "lint": 2.0}
    assert trace.metrics == {"lines": 10.0, "words": None}
    assert trace.reward == 3.0


async def test_reward_is_the_weighted_sum_of_what_is_not_null(stage: Stage) -> None:
    class Weighted(Task[TaskData]):
        @reward(weight=0.25)
        def quarter(self) -> float:
            return 1.0

        @reward(weight=3.0)
        def nothing(self) -> None:
            return None

        @reward
        def whole(self) -> bool:
            return True

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=Weighted()))
    assert trace.rewards == {"quarter": 0.25 * 4, "nothing": None, "whole": 1.0}
    assert trace.reward == 1.25
    assert trace.ok, "a score that has nothing to say is no failure"


@pytest.mark.parametrize(
    "answer",
    [Status(500), Status(401), Die(), Raw([b"hello"]), Say("very good"), Say('{"score": 7}'), Say('{"score": "high"}')],
    ids=["500", "401", "dies", "garbage", "no-json", "out-of-range", "no-number"],
)
async def test_judge_that_fails_leaves_null_and_the_rollout_none_the_worse(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, answer: Reply
) -> None:
    class Judged(Task[TaskData]):
        judges = (judge(),)

        @reward
        def right(self) -> float:
            return 1.0

    async with ModelServer(default=Say()) as model, ModelServer(default=answer) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Judged()))
    assert trace.rewards == {"right": 1.0, "style": None}
    assert trace.reward == 1.0
    assert trace.ok
    assert [(error.stage, error.type) for error in trace.errors] == [("scoring", "JudgeError")]
    assert "style" in trace.errors[0].message


async def test_judges_usage_is_kept_apart_from_the_policys(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged(Task[TaskData]):
        judges = (judge(weight=2.0),)

    async with ModelServer(default=Say()) as model, ModelServer(Status(503), verdict(0.5)) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Judged()))
    assert trace.errors == []
    assert trace.reward == 1.0
    assert (trace.num_turns, trace.num_input_tokens, trace.num_output_tokens) == (1, 10, 3)
    assert [call.purpose for call in trace.extra_usage] == ["judge:style", "judge:style"]
    assert [call.usage.total_tokens if call.usage else None for call in trace.extra_usage] == [None, 59]


async def test_harness_measures_beside_the_task(stage: Stage) -> None:
    class Measured(Acting):
        @metric
        def calls(self, trace: Trace) -> float:
            return float(len(trace.calls))

        def measurements(self) -> dict[str, float]:
            return {"steps": 4.0}

    class Plain(Task[TaskData]):
        @metric
        def turns(self, trace: Trace) -> float:
            return float(trace.num_turns)

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Measured(ask_once), task=Plain()))
    assert trace.metrics == {"turns": 1.0, "calls": 1.0, "steps": 4.0}


async def test_name_that_task_and_harness_both_measure_is_a_task_error_before_anything_runs(stage: Stage) -> None:
    class Measured(Acting):
        @metric
        def turns(self) -> float:
            return 1.0

    class Plain(Task[TaskData]):
        @metric
        def turns(self) -> float:
            return 2.0

    trace = await played(stage.rollout(None, Measured(ask_once), task=Plain()))
    assert [error.type for error in trace.errors] == ["TaskError"]
    assert "'turns'" in trace.errors[0].message
    assert not trace.ok
    assert stage.runtimes == []


async def test_rescore_seeds_every_name_anew_and_forgets_old_ones(stage: Stage) -> None:
    class Before(Task[TaskData]):
        @reward
        def old(self) -> float:
            return 1.0

        @reward
        def kept(self) -> float:
            return 1.0

    class After(Task[TaskData]):
        @reward
        def kept(self, trace: Trace) -> float:
            assert trace.rewards == {"kept": None, "needs_runtime": None, "new": None}
            return 0.5

        @reward
        def new(self) -> float:
            raise ZeroDivisionError

        @reward
        async def needs_runtime(self, runtime: Runtime) -> float:
            return float((await runtime.run(["true"])).exit_code)

    async with ModelServer(default=Say()) as model:
        trace = loads(dumps(await played(stage.rollout(model, task=Before()))))
    assert trace.rewards == {"old": 1.0, "kept": 1.0}
    task = After().for_rollout()
    data = task.data_type.from_json(trace.task)
    errors = await score(Given(owner=task, data=data, trace=trace, state=task.state), task)
    assert trace.rewards == {"kept": 0.5, "needs_runtime": None, "new": None}
    assert len(errors) == 2
