"""The four limits: their order, that they hold from the number itself on, and what they refuse to be."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.tasks.limits import LIMIT_NAMES, RolloutLimits


class Used(msgspec.Struct):
    """What a rollout has used."""

    num_turns: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_total_tokens: int = 0


def test_names_are_in_the_order_of_the_protocol() -> None:
    assert LIMIT_NAMES == ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_limit_is_reached_by_the_number_itself(name: str) -> None:
    limits = RolloutLimits(**{name: 5})
    counter = name.replace("max_", "num_")
    assert limits.reached(Used(**{counter: 4})) is None
    assert limits.reached(Used(**{counter: 5})) == name
    assert limits.reached(Used(**{counter: 6})) == name


def test_limit_of_zero_leaves_no_turn() -> None:
    assert RolloutLimits(max_turns=0).reached(Used()) == "max_turns"


def test_no_limit_is_never_reached() -> None:
    assert RolloutLimits().reached(Used(10**9, 10**9, 10**9, 10**9)) is None


_numbers = st.none() | st.integers(0, 5)


@given(st.lists(_numbers, min_size=4, max_size=4), st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_first_limit_in_order_gives_its_name(limits: list[int | None], used: list[int]) -> None:
    fields = dict(zip(LIMIT_NAMES, limits, strict=True))
    crossed = [
        name
        for name, limit, spent in zip(LIMIT_NAMES, limits, used, strict=True)
        if limit is not None and spent >= limit
    ]
    assert RolloutLimits(**fields).reached(Used(*used)) == (crossed[0] if crossed else None)


@pytest.mark.parametrize("value", [-1, 1.5, True, "5"])
@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_value_that_is_no_count_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        RolloutLimits(**{name: value})
