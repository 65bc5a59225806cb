"""settle: the rules for results on the wire, rule by rule."""

import json
from typing import Any

import pytest

from rollbook.backends.base import ExecutionOutcome, ExecutionResult
from rollbook.backends.settle import SettledResult, settle
from rollbook.sdk.sample import RolloutSample
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

MESSAGES = [{"role": "user", "content": "6 * 7"}, {"role": "assistant", "content": "42"}]


class Scalar:
    """What numpy's scalars look like to who does not import numpy."""

    ndim = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Hostile:
    """Raises from everything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hands off")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("hands off")

    def __deepcopy__(self, memo: Any) -> "Hostile":
        return self

    __hash__ = None  # type: ignore[assignment]


def success(sample: RolloutSample | None) -> ExecutionOutcome:
    result = ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
    return ExecutionOutcome(workflow=ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample), grader=result)


def settled(**fields: Any) -> SettledResult:
    return settle(success(RolloutSample(**{"messages": MESSAGES, "label": "42", "reward": 1.0, **fields})))


def changed(**fields: Any) -> SettledResult:
    """Settled with metrics or extra_fields changed in place, which no constructor checks."""
    sample = RolloutSample(messages=MESSAGES, label="42", reward=1.0)
    for name, values in fields.items():
        getattr(sample, name).update(values)
    return settle(success(sample))


def body(result: SettledResult) -> Any:
    assert result.sample is not None
    return json.loads(result.sample)


def test_plain_sample_is_encoded_in_the_wires_form() -> None:
    result = settled(metrics={"turns": 2}, extra_fields={"note": "x"})
    assert body(result) == {
        "messages": MESSAGES,
        "label": "42",
        "reward": 1.0,
        "remove_sample": False,
        "metrics": {"turns": 2},
        "extra_fields": {"note": "x"},
    }
    assert (result.status, result.reward, result.reduced, result.warnings) == (RolloutStatus.SUCCESS, 1.0, False, ())
    assert result.metrics == {"turns": 2.0}


def test_no_sample_settles_to_none() -> None:
    result = settle(success(None))
    assert (result.status, result.sample, result.reward, result.trajectory_saved) == ("success", None, None, "off")


@pytest.mark.parametrize("status", [RolloutStatus.FAILURE, RolloutStatus.CANCELLED])
def test_reward_is_null_unless_the_rollout_succeeded(status: RolloutStatus) -> None:
    graded = ExecutionResult(
        status=status,
        sample=RolloutSample(messages=MESSAGES, reward=1.0),
        err_message="grader failed",
        err_category=RolloutErrorCategory.AGENT_ERROR,
    )
    result = settle(ExecutionOutcome(workflow=ExecutionResult(status=RolloutStatus.SUCCESS), grader=graded))
    assert (result.status, result.err_message, result.err_category) == (status, "grader failed", "agent_error")
    assert result.reward is None
    assert body(result)["reward"] is None
    assert body(result)["messages"] == MESSAGES


def test_reward_of_a_removed_sample_is_null() -> None:
    result = settled(remove_sample=True)
    assert result.reward is None
    assert (body(result)["reward"], body(result)["remove_sample"]) == (None, True)


def test_failed_workflow_keeps_a_sample_that_only_the_grader_has() -> None:
    outcome = ExecutionOutcome(
        workflow=ExecutionResult(status=RolloutStatus.FAILURE, err_message="died"),
        grader=ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample(messages=MESSAGES, reward=1)),
    )
    result = settle(outcome)
    assert (result.status, result.err_message, result.reward) == (RolloutStatus.FAILURE, "died", None)
    assert body(result)["messages"] == MESSAGES


def test_values_without_json_form_are_dropped_from_metrics_and_extra_fields_with_one_warning() -> None:
    result = changed(
        metrics={"bad": float("nan"), "good": 2.5, "worse": float("inf"), "object": object()},
        extra_fields={"object": object(), "kept": {"a": [1, float("nan"), object(), 2]}, "bytes": b"x", 1: "key"},
    )
    assert body(result)["metrics"] == {"good": 2.5}
    assert body(result)["extra_fields"] == {"kept": {"a": [1, 2]}, "1": "key"}
    assert body(result)["messages"] == MESSAGES
    assert result.metrics == {"good": 2.5}
    assert len(result.warnings) == 1
    assert "object" in result.warnings[0]
    assert "non-finite float" in result.warnings[0]


def test_keys_without_json_form_are_dropped() -> None:
    result = changed(metrics={None: 1, True: 2, (1,): 3, 1.5: 4, float("nan"): 5})
    assert body(result)["metrics"] == {"1.5": 4}
    assert len(result.warnings) == 1


def test_scalars_of_other_libraries_become_numbers_without_a_warning() -> None:
    result = changed(
        metrics={"float": Scalar(1.5), "int": Scalar(3), "flag": Scalar(True)}, extra_fields={"list": [Scalar(2)]}
    )
    assert body(result)["metrics"] == {"float": 1.5, "int": 3, "flag": True}
    assert body(result)["extra_fields"] == {"list": [2]}
    assert result.metrics == {"float": 1.5, "int": 3.0, "flag": 1.0}
    assert result.warnings == ()


def test_non_finite_scalar_of_another_library_is_dropped() -> None:
    assert body(changed(metrics={"bad": Scalar(float("nan"))}))["metrics"] == {}


def test_recorded_metrics_are_the_numbers_and_nulls() -> None:
    result = changed(metrics={"a": 1, "b": None, "c": "text", "d": [1], "e": True, "huge": 10**400})
    assert result.metrics == {"a": 1.0, "b": None, "e": 1.0}
    assert body(result)["metrics"]["huge"] == 10**400


def _cycle() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    message["itself"] = message
    return message


def _nested(depth: int) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for _ in range(depth):
        message = {"a": message}
    return message


@pytest.mark.parametrize(
    "message",
    [
        {"content": float("nan")},
        {"content": [{"deep": float("-inf")}]},
        {"content": object()},
        {"content": Hostile()},
        {"content": b"\xff"},
        {None: "key"},
        {"content": 10**5000},
        _cycle(),
        _nested(1200),
        _nested(100_000),
    ],
    ids=["nan", "infinity", "object", "hostile", "bytes", "key", "long integer", "cycle", "deep", "very deep"],
)
def test_messages_without_json_form_cost_messages_metrics_and_extra_fields_but_no_reward(message: Any) -> None:
    sample = RolloutSample(messages=[{"role": "user"}], label="42", reward=0.5, metrics={"m": 1}, extra_fields={"e": 1})
    sample.messages[0] = message
    result = settle(success(sample))
    assert body(result) == {
        "messages": [],
        "label": "42",
        "reward": 0.5,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }
    assert (result.reward, result.reduced) == (0.5, False)
    assert result.metrics == {"m": 1.0}
    assert "answered without messages" in result.warnings[0]


def test_cycle_in_metrics_costs_no_reward_either() -> None:
    sample = RolloutSample(messages=MESSAGES, reward=0.5)
    sample.metrics["itself"] = sample.metrics
    result = settle(success(sample))
    assert (body(result)["messages"], result.reward) == ([], 0.5)


class Model:
    """Dumps itself as pydantic's models do."""

    def model_dump(self, *, mode: str) -> Any:
        return {"mode": mode, "ids": (1, 2)}


def test_message_values_with_an_obvious_json_form_are_converted() -> None:
    sample = RolloutSample(messages=[{"call": Model(), "tuple": (1, "a"), "set": {7}, "bytes": b"text", "n": None}])
    assert body(settle(success(sample)))["messages"] == [
        {"call": {"mode": "json", "ids": [1, 2]}, "tuple": [1, "a"], "set": [7], "bytes": "text", "n": None}
    ]


@pytest.mark.parametrize(
    "value",
    [1e308, -1e308, 5e-324, 2**64, -(2**70), 10**30, "a\u0000b", "x" * 2_000_000, "é\u2028"],
    ids=lambda value: repr(value)[:12],
)
def test_extreme_values_come_back_unchanged(value: Any) -> None:
    result = settled(messages=[{"content": value}], metrics={"m": 1})
    assert body(result)["messages"] == [{"content": value}]
    assert (result.reduced, result.warnings) == (False, ())


@pytest.mark.parametrize("place", ["messages", "label", "metrics", "extra_fields", "key"])
def test_lone_surrogates_stay_as_ascii_escapes_and_ask_for_the_reduced_answer(place: str) -> None:
    sample = RolloutSample(messages=MESSAGES, label="42", reward=1.0)
    match place:
        case "messages":
            sample.messages[0]["content"] = "a\ud800b"
        case "label":
            sample.label = "a\ud800b"
        case "key":
            sample.metrics["a\ud800b"] = 1
        case _:
            getattr(sample, place)["m"] = "a\ud800b"
    result = settle(success(sample))
    assert result.sample is not None
    assert rb"a\ud800b" in result.sample
    assert result.sample.isascii()
    assert (result.reduced, result.reward, result.warnings) == (True, 1.0, ())
    assert all(name.isascii() for name in result.metrics)


def test_surrogate_in_the_label_of_a_sample_without_json_form_stays_too() -> None:
    sample = RolloutSample(label="a\ud800b", reward=1)
    sample.messages = [{"content": float("nan")}]
    result = settle(success(sample))
    assert result.reduced
    assert (body(result)["label"], body(result)["messages"]) == ("a\ud800b", [])


def test_surrogates_in_error_messages_become_question_marks() -> None:
    failed = ExecutionResult(status=RolloutStatus.FAILURE, err_message="bad é \ud800")
    assert settle(ExecutionOutcome(workflow=failed)).err_message == "bad é ?"


def test_trajectory_equal_to_the_messages_is_not_stored_twice() -> None:
    result = settled()
    assert (result.trajectory, result.trajectory_saved) == (None, "messages")


def test_trajectory_of_its_own_is_encoded() -> None:
    result = settled(trajectory_messages=[{"role": "tool"}])
    assert (result.trajectory, result.trajectory_saved) == (b'[{"role":"tool"}]', "own")
    sample = RolloutSample(messages=MESSAGES, reward=1)
    sample.messages.append({"role": "user", "content": "added by the grader"})
    result = settle(success(sample))
    assert result.trajectory_saved == "own"
    assert json.loads(result.trajectory or b"") == MESSAGES


def test_trajectory_turned_off_is_off() -> None:
    result = settled(trajectory_messages=None)
    assert (result.trajectory, result.trajectory_saved) == (None, "off")


def test_trajectory_without_json_form_is_off_with_a_warning() -> None:
    result = settled(trajectory_messages=[{"content": float("nan")}])
    assert (result.trajectory, result.trajectory_saved) == (None, "off")
    assert "trajectory" in result.warnings[0]
    assert body(result)["messages"] == MESSAGES


def test_trajectory_is_kept_where_only_the_messages_have_no_json_form() -> None:
    sample = RolloutSample(messages=MESSAGES, reward=1)
    sample.messages[1]["content"] = object()
    result = settle(success(sample))
    assert (result.trajectory_saved, json.loads(result.trajectory or b"")) == ("own", MESSAGES)


def test_backend_that_ends_without_an_end_is_an_internal_error() -> None:
    result = settle(ExecutionOutcome(workflow=ExecutionResult(status=RolloutStatus.RUNNING)))
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, RolloutErrorCategory.INTERNAL_ERROR)
    assert "'running'" in (result.err_message or "")
