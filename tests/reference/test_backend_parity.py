"""The same workflows and graders on the reference's LocalBackend and on ours: outcomes and wire samples agree.

The reference's side runs the function its server runs for each rollout, so its answer is the one a trainer gets.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import msgspec
import osmosis_ai.rollout as reference
import pytest
from osmosis_ai.rollout.server.app import _handle_rollout

import rollbook
from rollbook.backends.settle import settle

PROMPT = [{"role": "user", "content": "6 * 7"}]
REPLY = {"role": "assistant", "content": "42"}


class Answer(msgspec.Struct):
    """What a trainer sees of a result."""

    status: str
    sample: Any
    message: str | None
    category: str | None


type Step = Callable[[ModuleType, Any], Any]


class Case(msgspec.Struct):
    """One behaviour: what run() and grade() do, given the SDK they are written against, and the request's fields."""

    run: Step
    grade: Step | None
    fields: dict[str, Any]
    own_message: bool


def case(run: Step, grade: Step | None = None, *, own_message: bool = False, **fields: Any) -> Case:
    """`own_message`: the message is the user's, so both servers must answer exactly that."""
    return Case(run, rewarding if grade is None else grade, fields, own_message)


def ungraded(run: Step) -> Case:
    """Admitted with grade=false."""
    return Case(run, rewarding, {"grade": False}, own_message=False)


def replying(sdk: ModuleType, ctx: Any) -> Any:
    return [*ctx.prompt, REPLY]


def rewarding(sdk: ModuleType, ctx: Any) -> Any:
    ctx.set_reward(1)


def returning(value: Any) -> Step:
    return lambda sdk, ctx: value


def output(**fields: Any) -> Step:
    return lambda sdk, ctx: sdk.AgentWorkflowOutput(**fields)


def raising(error: BaseException) -> Step:
    def step(sdk: ModuleType, ctx: Any) -> Any:
        raise error

    return step


def sourced(make: Callable[[ModuleType], Any], times: int = 1) -> Step:
    """Registers a source of what `make` returns, and returns None."""

    def step(sdk: ModuleType, ctx: Any) -> Any:
        class Source(sdk.SampleSource):  # type: ignore[misc, name-defined]
            async def get_sample(self) -> Any:
                return make(sdk)

        for _ in range(times):
            sdk.get_rollout_context().set_sample_source(Source())

    return step


def reward(value: Any) -> Step:
    return lambda sdk, ctx: ctx.set_reward(value)


def changing(change: Callable[[Any], Any]) -> Step:
    """Rewards, then changes the sample."""

    def step(sdk: ModuleType, ctx: Any) -> Any:
        ctx.set_reward(1)
        change(ctx.sample)

    return step


def setting(field: str, value: Any) -> Step:
    return changing(lambda sample: setattr(sample, field, value))


def measuring(**metrics: Any) -> Step:
    return changing(lambda sample: sample.metrics.update(metrics))


def waiting(sdk: ModuleType, ctx: Any) -> Any:
    return asyncio.Event().wait()


def removing(sdk: ModuleType, ctx: Any) -> Any:
    ctx.sample.remove_sample = True


def replacing(sdk: ModuleType, ctx: Any) -> Any:
    ctx.sample = sdk.RolloutSample(messages=[REPLY], reward=7)


def cyclic_metrics(sample: Any) -> None:
    sample.metrics["itself"] = sample.metrics


def nested(depth: int) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for _ in range(depth):
        message = {"a": message}
    return message


def cycle() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    message["itself"] = message
    return message


CASES = {
    "success": case(replying),
    "reward zero": case(replying, reward(0)),
    "grade false": ungraded(replying),
    "empty list": case(returning([])),
    "output": case(output(messages=[REPLY], metrics={"turns": 2})),
    "output with text and flag metrics": case(output(messages=[], metrics={"a": "1.5", "b": True})),
    "output without messages": case(output(messages=None)),
    "output without messages, not graded": ungraded(output(messages=None)),
    "output with a nan metric": case(output(messages=[], metrics={"a": float("nan")})),
    "output with a null metric": case(output(messages=[], metrics={"a": None})),
    "output with an unknown field": case(output(messages=[], score=1)),
    "none without source": case(returning(None)),
    "none without source, not graded": ungraded(returning(None)),
    "number": case(returning(42)),
    "tuple": case(returning((REPLY,))),
    "messages that are no dicts": case(returning([1, 2])),
    "message with a key that is no string": case(returning([{1: "a"}])),
    "source": case(sourced(lambda sdk: sdk.RolloutSample(messages=[REPLY]))),
    "source with a label": case(sourced(lambda sdk: sdk.RolloutSample(messages=[REPLY], label="own"))),
    "source of a dict": case(sourced(lambda sdk: {"messages": [REPLY]})),
    "source of none": case(sourced(lambda sdk: None)),
    "source of nonsense": case(sourced(lambda sdk: "text")),
    "source of a nan reward": case(sourced(lambda sdk: sdk.RolloutSample(reward=float("nan")))),
    "source of a removed sample": case(sourced(lambda sdk: sdk.RolloutSample(messages=[REPLY], remove_sample=True))),
    "two sources": case(sourced(lambda sdk: sdk.RolloutSample(), times=2)),
    "value error": case(raising(ValueError("chosen failure")), own_message=True),
    "type error": case(raising(TypeError("chosen failure")), own_message=True),
    "assertion error": case(raising(AssertionError("chosen failure")), own_message=True),
    "runtime error": case(raising(RuntimeError("chosen failure")), own_message=True),
    "key error": case(raising(KeyError("chosen failure")), own_message=True),
    "os error": case(raising(OSError(2, "chosen failure")), own_message=True),
    "timeout error": case(raising(TimeoutError("chosen failure")), own_message=True),
    "error with a surrogate": case(raising(ValueError("a\ud800b")), own_message=True),
    "error without text": case(raising(ValueError())),
    "exception group": case(raising(ExceptionGroup("g", [ValueError("x")]))),
    "agent deadline": case(waiting, agent_timeout_sec=0.05, own_message=True),
    "agent deadline passed at admission": case(waiting, agent_timeout_sec=0, own_message=True),
    "grader deadline": case(replying, waiting, grader_timeout_sec=0.05, own_message=True),
    "no label and no metadata": case(replying, label=None),
    "empty label": case(replying, label=""),
    "empty metadata": case(replying, label=None, metadata={}),
    "grader value error": case(replying, raising(ValueError("chosen failure")), own_message=True),
    "grader runtime error": case(replying, raising(RuntimeError("chosen failure")), own_message=True),
    "grader timeout error": case(replying, raising(TimeoutError("chosen failure")), own_message=True),
    "grader forgets": case(replying, returning(None)),
    "grader removes": case(replying, removing),
    "grader rewards and removes": case(replying, setting("remove_sample", True)),
    "grader removes with a word": case(replying, setting("remove_sample", "yes")),
    "grader replaces the sample": case(replying, replacing),
    "reward text": case(replying, reward(" 1.5 ")),
    "reward bytes": case(replying, reward(b"1.5")),
    "reward flag": case(replying, reward(True)),
    "reward decimal": case(replying, reward(Decimal("1.5"))),
    "reward fraction": case(replying, reward(Fraction(1, 2))),
    "reward large": case(replying, reward(10**20)),
    "reward none": case(replying, reward(None)),
    "reward nan": case(replying, reward(float("nan"))),
    "reward infinity as text": case(replying, reward("inf")),
    "reward nonsense": case(replying, reward("abc")),
    "reward beyond floats": case(replying, reward(10**400)),
    "label changed": case(replying, setting("label", "other")),
    "label that is no text": case(replying, setting("label", 5)),
    "metrics that are no dict": case(replying, setting("metrics", 5)),
    "messages that are no list": case(replying, setting("messages", 5)),
    "field that does not exist": case(replying, setting("score", 5)),
    "metrics": case(replying, measuring(a=1, b=2.5, c="text", d=True, e=None, f=[1, (2, 3)], g={"h": 1})),
    "metrics without json form": case(
        replying, measuring(a=float("nan"), b=object(), c=b"x", d=[1, object()], e={"f": float("inf"), "g": 1}, h=2)
    ),
    "metrics of other number types": case(replying, measuring(a=Fraction(1, 2), b=Decimal("1.5"), c=2**70)),
    "metric keys that are no text": case(
        replying, changing(lambda sample: sample.metrics.update({1: "int", 1.5: "float", None: "none"}))
    ),
    "extra fields": case(replying, changing(lambda sample: sample.extra_fields.update(a=object(), b={"c": [1]}))),
    "metrics in a cycle": case(replying, changing(cyclic_metrics)),
    "metric of absurd length": case(replying, measuring(a=10**5000)),
    "metric with a surrogate": case(replying, measuring(a="x\ud800y")),
    "message with a surrogate": case(returning([{"content": "x\ud800y"}])),
    "label with a surrogate": case(replying, label="x\ud800y"),
    "message with an object": case(returning([{"content": object()}])),
    "message in a cycle": case(lambda sdk, ctx: [cycle()]),
    "message of absurd depth": case(lambda sdk, ctx: [nested(3000)]),
    "message with an integer of absurd length": case(returning([{"content": 10**5000}])),
    "extreme values": case(returning([{"a": 10**30, "b": 1e308, "c": 2**70, "d": "a\u0000b", "e": "é\u2028"}])),
    "message with tuples, sets and bytes": case(returning([{"a": (1, "x"), "b": {7}, "c": b"bytes", "d": None}])),
    "two megabytes": case(returning([{"content": "x" * 2_000_000}])),
}


def make_backend(sdk: ModuleType, behaviour: Case, *, grader: bool = True) -> Any:
    async def settled(step: Step, ctx: Any) -> Any:
        value = step(sdk, ctx)
        return await value if asyncio.iscoroutine(value) else value

    class Workflow(sdk.AgentWorkflow):  # type: ignore[misc, name-defined]
        async def run(self, ctx: Any) -> Any:
            return await settled(behaviour.run, ctx)

    class Grader(sdk.Grader):  # type: ignore[misc, name-defined]
        async def grade(self, ctx: Any) -> Any:
            assert behaviour.grade is not None
            return await settled(behaviour.grade, ctx)

    return sdk.LocalBackend(workflow=Workflow, grader=Grader if grader else None)


def request_fields(behaviour: Case) -> dict[str, Any]:
    return {"label": "42", "metadata": None, **behaviour.fields}


async def reference_answer(behaviour: Case, *, grader: bool = True) -> Answer:
    request = reference.RolloutInitRequest(
        initial_messages=PROMPT, chat_completions_url="http://policy", rollout_id="r", **request_fields(behaviour)
    )
    response = await _handle_rollout(make_backend(reference, behaviour, grader=grader), request)
    document = response.model_dump(mode="json", exclude={"sample": {"trajectory_messages"}})
    return Answer(document["status"], document["sample"], document["err_message"], document["err_category"])


async def our_answer(behaviour: Case, *, grader: bool = True) -> Answer:
    request = rollbook.ExecutionRequest(id="r", prompt=PROMPT, **request_fields(behaviour))
    with rollbook.RolloutContext("http://policy", rollout_id="r"):
        outcome = await make_backend(rollbook, behaviour, grader=grader).execute(request)
    result = settle(outcome)
    sample = None if result.sample is None else json.loads(result.sample)
    if result.reduced:
        sample = reduced_form(sample)
    return Answer(str(result.status), sample, result.err_message, result.err_category and str(result.err_category))


def reduced_form(document: Any) -> Any:
    """What a server answers for a sample marked `reduced`."""
    label = document["label"]
    return {
        **document,
        "messages": [],
        "metrics": {},
        "extra_fields": {},
        "label": None if label is None else label.encode("utf-8", "replace").decode(),
    }


@pytest.fixture(autouse=True)
def quiet_reference(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference writes its artifacts below this folder, and logs every failure."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    logging.getLogger("osmosis_ai").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("name", CASES)
async def test_answer_equals_the_references(name: str) -> None:
    behaviour = CASES[name]
    expected, answer = await reference_answer(behaviour), await our_answer(behaviour)
    assert (answer.status, answer.category) == (expected.status, expected.category)
    assert answer.sample == expected.sample
    if behaviour.own_message:
        assert answer.message == expected.message
    else:
        # Our wording differs, and explains where the reference is silent; but a success needs no words.
        assert (answer.message is None) == (answer.status == "success")


async def test_backend_without_grader_answers_as_the_reference_but_says_why() -> None:
    behaviour = CASES["success"]
    expected, answer = await reference_answer(behaviour, grader=False), await our_answer(behaviour, grader=False)
    assert (answer.status, answer.sample, answer.category) == (expected.status, expected.sample, expected.category)
    assert expected.message is None
    assert "no grader" in (answer.message or "")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
async def test_errors_that_escape_the_reference_are_failures_here(error: BaseException) -> None:
    behaviour = case(raising(error))
    answer = await our_answer(behaviour)
    assert (answer.status, answer.category, answer.sample) == ("failure", "agent_error", None)
    assert type(error).__name__ in (answer.message or "")
