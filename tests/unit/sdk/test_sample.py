"""RolloutSample: defaults, the trajectory snapshot, checks at construction and on assignment."""

import logging
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from rollbook.sdk.sample import RolloutSample, coerce_sample


class Floatable:
    def __float__(self) -> float:
        return 2.5


class Uncopyable:
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise RuntimeError("one of a kind")


def test_empty_sample_has_the_documented_defaults() -> None:
    sample = RolloutSample()
    assert sample.messages == []
    assert sample.trajectory_messages == []
    assert (sample.label, sample.reward, sample.remove_sample) == (None, None, False)
    assert (sample.metrics, sample.extra_fields) == ({}, {})


def test_trajectory_defaults_to_a_snapshot_of_the_messages() -> None:
    sample = RolloutSample(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}])
    sample.messages[0]["content"][0]["text"] = "changed"
    sample.messages.append({"role": "assistant"})
    assert sample.trajectory_messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_explicit_none_turns_the_trajectory_off() -> None:
    assert RolloutSample(messages=[{"a": 1}], trajectory_messages=None).trajectory_messages is None


def test_explicit_trajectory_is_kept() -> None:
    assert RolloutSample(messages=[{"a": 1}], trajectory_messages=[{"b": 2}]).trajectory_messages == [{"b": 2}]


def test_messages_that_cannot_be_copied_only_cost_the_trajectory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sample = RolloutSample(messages=[{"a": Uncopyable()}])
    assert sample.trajectory_messages is None
    assert len(sample.messages) == 1
    assert "no trajectory is saved" in caplog.text


def test_the_callers_messages_are_not_taken_over() -> None:
    messages = [{"role": "user"}]
    sample = RolloutSample(messages=messages)
    sample.messages[0]["role"] = "system"
    sample.messages.append({"role": "assistant"})
    assert messages == [{"role": "user"}]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(1, 1.0), ("1.5", 1.5), (" 2 ", 2.0), (True, 1.0), (Decimal("1.5"), 1.5), (Fraction(1, 2), 0.5)],
)
def test_reward_becomes_a_float(given: Any, kept: float) -> None:
    sample = RolloutSample()
    sample.reward = given
    assert type(sample.reward) is float
    assert sample.reward == kept
    assert RolloutSample(reward=given).reward == kept


def test_reward_takes_anything_with_a_float_form() -> None:
    assert RolloutSample(reward=Floatable()).reward == 2.5  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "inf", "abc", 10**400, object(), [], 1j])
def test_reward_that_is_no_finite_number_is_refused_and_changes_nothing(given: Any) -> None:
    sample = RolloutSample(reward=0.5)
    with pytest.raises(ValueError, match="reward must be a finite number"):
        sample.reward = given
    assert sample.reward == 0.5


def test_reward_can_be_taken_back() -> None:
    sample = RolloutSample(reward=0.5)
    sample.reward = None
    assert sample.reward is None


@pytest.mark.parametrize(("given", "kept"), [("yes", True), ("off", False), (1, True), (0, False), (True, True)])
def test_remove_sample_takes_the_usual_words(given: Any, kept: bool) -> None:
    assert RolloutSample(remove_sample=given).remove_sample is kept


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", 5),
        ("messages", "text"),
        ("messages", ["text"]),
        ("messages", [{1: "key"}]),
        ("trajectory_messages", [5]),
        ("label", 5),
        ("remove_sample", "maybe"),
        ("remove_sample", 2),
        ("metrics", 5),
        ("metrics", {1: 1.0}),
        ("extra_fields", [1]),
    ],
)
def test_bad_value_is_refused_at_construction_and_on_assignment(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        RolloutSample(**{field: value})
    sample = RolloutSample()
    with pytest.raises(ValueError, match=field):
        setattr(sample, field, value)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="score"):
        RolloutSample(score=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="score"):
        RolloutSample().score = 1


def test_label_of_a_string_subclass_becomes_a_string() -> None:
    class Label(str):
        __slots__ = ()

    assert type(RolloutSample(label=Label("a")).label) is str


def test_source_may_answer_a_dict_of_fields() -> None:
    assert coerce_sample({"messages": [{"a": 1}], "reward": "1"}) == RolloutSample(messages=[{"a": 1}], reward=1.0)


@pytest.mark.parametrize("value", ["text", 5, [{"role": "user"}], {"unknown": 1}])
def test_source_that_answers_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        coerce_sample(value)
