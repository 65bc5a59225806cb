"""What an upstream says of a call, and what is made of it where it says it badly."""

from typing import Any

import pytest

from rollbook.traces import CallTokens, Usage


def test_usage_is_read_with_its_details() -> None:
    usage = Usage.parse(
        {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }
    )
    assert usage == Usage(10, 4, cached_input_tokens=8, reasoning_tokens=3)
    assert usage.total_tokens == 14


@pytest.mark.parametrize("details", [None, 5, {}, {"cached_tokens": "8"}, {"cached_tokens": -1}])
def test_unusable_details_are_left_out(details: Any) -> None:
    read = Usage.parse({"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": details})
    assert read == Usage(1, 2)


def test_count_in_floats_is_a_count() -> None:
    read = Usage.parse({"prompt_tokens": 10.0, "completion_tokens": 0})
    assert read == Usage(10, 0)
    assert isinstance(read.input_tokens, int)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "usage",
        {},
        {"prompt_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": None},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": "1", "completion_tokens": 1},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
        {"prompt_tokens": float("inf"), "completion_tokens": 1},
        {"prompt_tokens": 2**63, "completion_tokens": 1},
    ],
)
def test_unusable_usage_is_none(value: Any) -> None:
    assert Usage.parse(value) is None


@pytest.mark.parametrize(
    "tokens",
    [CallTokens([1], [2], [-0.5]), CallTokens([1], [2]), CallTokens(ids=[2]), CallTokens(logprobs=[-1.0])],
)
def test_whole_tokens_are_kept_as_they_are(tokens: CallTokens) -> None:
    assert tokens.usable() is tokens


@pytest.mark.parametrize("logprobs", [[], [-1.0, -2.0], [float("-inf")], [float("nan")]])
def test_logprobs_that_do_not_fit_the_ids_are_marked_absent(logprobs: list[float]) -> None:
    assert CallTokens([1], [2], logprobs).usable() == CallTokens([1], [2], None)


def test_tokens_of_which_nothing_was_sent_are_none() -> None:
    assert CallTokens().usable() is None
    assert CallTokens(logprobs=[float("nan")]).usable() is None
