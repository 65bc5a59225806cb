"""What is told beside a task's own scores: calls of judges, what a harness measured, what a cut scoring left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.hooks import metric, reward
from rollbook.tasks.judge import Judge
from rollbook.tasks.task import Task
from rollbook_client.events import MetricRecorded, ModelCalled, RewardRecorded
from tests.contract.tasks.playing import PROMPT, Acting, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say, Status


async def test_calls_of_judges_are_told_with_their_purpose_tokens_and_errors(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judged(Task[TaskData]):
        judges = (Judge("style", "grader-1", rubric="Is it good?", base_url_env="JUDGE_URL", backoff_sec=0),)

    verdict = Say('{"score": 0.5}', usage={"prompt_tokens": 50, "completion_tokens": 9})
    async with ModelServer(default=Say()) as model, ModelServer(Status(503), verdict) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Judged()))
    assert trace.rewards == {"style": 0.5}
    told = [(call.purpose, call.input_tokens, call.output_tokens, call.error_kind) for call in stage.tells(ModelCalled)]
    assert told == [("policy", 10, 3, None), ("judge:style", None, None, "http"), ("judge:style", 50, 9, None)]


async def test_answer_of_a_judge_that_is_no_score_is_told_with_what_it_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judged(Task[TaskData]):
        judges = (Judge("style", "grader-1", rubric="Is it good?", base_url_env="JUDGE_URL"),)

    prose = Say("Rather nice.", usage={"prompt_tokens": 50, "completion_tokens": 9})
    async with ModelServer(default=Say()) as model, ModelServer(prose) as grader:
        monkeypatch.setenv("JUDGE_URL", grader.url)
        trace = await played(stage.rollout(model, task=Judged()))
    assert (trace.ok, trace.rewards) == (True, {"style": None})
    [told] = [call for call in stage.tells(ModelCalled) if call.purpose == "judge:style"]
    assert (told.input_tokens, told.error_kind) == (50, "garbage")
    assert told.error == """did not answer with {"score": NUMBER}: 'Rather nice.'"""


async def test_what_a_harness_measures_replaces_no_metric_of_the_task(stage: Stage) -> None:
    class Measures(Acting):
        def measurements(self) -> Mapping[str, float]:
            return {"turns": 99.0, "unsaid": 99.0, "steps": 4.0}

    class Plain(Task[TaskData]):
        @metric
        def turns(self) -> float:
            return 1.0

        @metric
        def unsaid(self) -> None:
            return None

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Measures(ask_once), task=Plain()))
    assert trace.metrics == {"turns": 1.0, "unsaid": None, "steps": 4.0}
    assert [(event.name, event.value) for event in stage.tells(MetricRecorded)] == [
        ("turns", 1.0),
        ("unsaid", None),
        ("steps", 4.0),
    ]


async def test_scores_of_a_scoring_that_took_too_long_are_told_with_those_that_never_came(stage: Stage) -> None:
    class Stuck(Task[TaskData]):
        @metric
        def quick(self) -> float:
            return 1.0

        @reward
        async def stuck(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(scoring=0.1))
    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, task=Stuck(), data=data))
    assert not trace.ok
    assert [(event.name, event.value) for event in stage.tells(MetricRecorded)] == [("quick", 1.0)]
    assert [(event.name, event.value) for event in stage.tells(RewardRecorded)] == [("stuck", None)]
