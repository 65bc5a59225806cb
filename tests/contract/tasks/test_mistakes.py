"""Mistakes of those who write tasks: each is named where it was made, and its traceback is in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.tasks import TaskBackend
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.hooks import intercept, metric, reward, stop
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import Bare, Stage, played
from tests.support.model_server import ModelServer, Say


class Forgetful(Task[TaskData]):
    """Looks for what is not there."""

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        {"name": "value"}["secret"]


async def test_error_of_a_task_is_named_and_its_traceback_is_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    trace = await played(stage.rollout(None, task=Forgetful()))
    assert [(error.stage, error.type, error.message) for error in trace.errors] == [
        ("setup", "KeyError", "KeyError: 'secret'")
    ]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "in setup" in (record.exc_text or logging.Formatter().formatException(record.exc_info))


class Misspelt(Task[TaskData]):
    """Every hook asks for what is not there, one in a helper; each of those lines ends in "# raises"."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def look(self, name: str) -> float:
        if name == self.wrong:
            return {"check": 1.0}["chek"]  # raises
        return 1.0

    @intercept
    def clean(self, request: Request) -> None:
        self.look("clean")

    @stop
    async def enough(self, response: Response) -> bool:
        return self.look("enough") == 0

    @metric
    async def found(self) -> float:
        await asyncio.sleep(0)
        return self.look("found")

    @reward
    def right(self) -> float:
        return self.look("right")


RAISES = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "]  # raises" in text)


@pytest.mark.parametrize("hook", ["@intercept clean", "@stop enough", "@metric found", "@reward right"])
async def test_error_of_a_hook_names_the_authors_line_and_its_traceback_is_in_the_log_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    kind, name = hook.split()
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Misspelt(name)))
    [error] = trace.errors
    assert error.message == f"{kind} Misspelt.{name} raised KeyError: 'chek' ({__file__}, line {RAISES})"
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == f"rollout t-1: {kind} Misspelt.{name} failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_model_is_asked_for_by_the_name_that_the_harness_was_given(stage: Stage) -> None:
    async with ModelServer(Say("42"), Say("42")) as model:
        await played(stage.rollout(model, ChatHarness(model="glm-5")))
        await played(stage.rollout(model, ChatHarness()))
        assert [json.loads(received.body)["model"] for received in model.received] == ["glm-5", "policy"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"harness": ChatHarness}, "harness must be a Harness"),
        ({"runtime": SubprocessRuntime()}, "pass the class, or a function"),
        ({"limits": {"max_turns": 4}}, "limits must be RolloutLimits"),
    ],
    ids=["a class of harnesses", "a runtime", "limits as a dict"],
)
def test_wrong_arguments_of_a_backend_are_refused_when_it_is_made(given: dict[str, Any], complaint: str) -> None:
    arguments: dict[str, Any] = {
        "task": Bare,
        "harness": ChatHarness(),
        "runtime": SubprocessRuntime,
        "limits": RolloutLimits(),
    }
    with pytest.raises(TypeError, match=complaint):
        TaskBackend(**(arguments | given))


@pytest.mark.parametrize("number", [0, -1, 1.5, math.nan, True, "4"])
def test_number_of_rollouts_at_once_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="max_concurrent must be a whole number from 1 on, or None for no limit; got "):
        TaskBackend(task=Bare, harness=ChatHarness(), runtime=SubprocessRuntime, max_concurrent=number)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [({"harness": ChatHarness}, "harness must be a Harness"), ({"limits": 4}, "limits must be RolloutLimits.*got 4")],
)
def test_wrong_arguments_of_a_rollout_are_refused_when_it_is_made(
    stage: Stage, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        stage.rollout(None, **given)


async def test_stop_that_returns_nothing_is_named_with_what_it_returned(stage: Stage) -> None:
    class Forgot(Task[TaskData]):
        @stop
        def too_long(self, trace: Trace) -> None:
            trace.info["turns"] = trace.num_turns

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Forgot()))
    [error] = trace.errors
    assert error.message == "@stop Forgot.too_long returned None (NoneType); have it return True or False"
    assert (error.type, error.category) == ("TaskError", "validation_error")
