"""Telling plain data from other data, and making it plain: properties over generated values."""

import json
import math
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.backends.json_form import MAX_DEPTH, encode_plain, fit, is_plain, plain

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


class Color(StrEnum):
    RED = "red"


class Level(Enum):
    LOW = 1


@given(json_values)
def test_json_data_is_plain_and_survives_encoding(value: Any) -> None:
    assert is_plain(value)
    encoded, surrogates = encode_plain(value)
    assert not surrogates
    assert json.loads(encoded) == value
    dropped: set[str] = set()
    assert fit(value, dropped) == value
    assert plain(value) == value
    assert not dropped


@given(json_values, st.sampled_from([math.nan, math.inf, -math.inf, b"x", Decimal(1), object(), {1}, Color.RED]))
def test_one_foreign_value_anywhere_is_found(value: Any, foreign: Any) -> None:
    assert not is_plain([value, {"a": [value, foreign]}])


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs"])))
def test_any_text_survives_encoding(text: str) -> None:
    encoded, surrogates = encode_plain({"text": text})
    assert surrogates == any("\ud800" <= character <= "\udfff" for character in text)
    # A pair of surrogates in one string is read back as the character it stands for.
    kept = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert json.loads(encoded)["text"] == kept


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_limited() -> None:
    assert is_plain(_nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="nested deeper"):
        is_plain(_nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (Color.RED, "red"),
        (Level.LOW, 1),
        (date(2024, 5, 1), "2024-05-01"),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (Decimal("1.5"), "1.5"),
        (frozenset({1}), [1]),
        ({1: "a", 1.5: "b"}, {"1": "a", "1.5": "b"}),
        (range(2), [0, 1]),
    ],
)
def test_obvious_json_forms(value: Any, form: Any) -> None:
    assert plain(value) == form
    encode_plain(plain(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"\xff", {None: 1}, {True: 1}, len])
def test_values_without_json_form_are_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        plain(value)
