"""Free text on its way into a column."""

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook_projections.text import MAX_TEXT_BYTES, column_text

hard_texts = st.one_of(
    st.text(),
    st.text(st.sampled_from("a\x00\ud800\udfff\udc00\ud83d\U0001f600\x7f\u2028"), max_size=12),
    st.text(st.sampled_from("aé𝄞"), min_size=1, max_size=3).map(lambda text: text * 3_000),
)


def test_none_stays_none() -> None:
    assert column_text(None) is None


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=200))
def test_ordinary_text_stays(text: str) -> None:
    assert column_text(text) == text


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
)
def test_nul_and_lone_surrogates_are_replaced(text: str, shown: str) -> None:
    assert column_text(text) == shown


@given(hard_texts)
def test_column_holds_text_that_every_database_takes(text: str) -> None:
    stored = column_text(text)
    assert stored is not None
    assert len(stored.encode()) <= MAX_TEXT_BYTES
    assert "\x00" not in stored
    with closing(sqlite3.connect(":memory:")) as db:
        assert db.execute("SELECT ?", (stored,)).fetchone()[0] == stored


@given(hard_texts)
def test_column_is_the_same_from_the_text_and_from_its_json(text: str) -> None:
    assert column_text(text) == column_text(json.loads(json.dumps(text)))


@given(hard_texts)
def test_column_text_of_a_column_is_itself(text: str) -> None:
    assert column_text(column_text(text)) == column_text(text)


@pytest.mark.parametrize("letter", ["a", "é", "𝄞", "\ufffd"])
def test_long_text_is_cut_at_a_whole_character(letter: str) -> None:
    stored = column_text(letter * 10_000)
    assert stored is not None
    assert MAX_TEXT_BYTES - 3 <= len(stored.encode()) <= MAX_TEXT_BYTES
    assert set(stored) == {letter}
