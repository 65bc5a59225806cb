"""Prefix ranges in the order of bytes, and inserts of any number of rows."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.sqlite.dialect import SqliteDialect
from rollbook.ledger.sqlite.inserts import RowInsert
from rollbook.ledger.statements import prefix_range, successor

# Code points around every border that matters: one to four bytes, the surrogates' gap, the last one.
BORDERS = "\x01\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff"
texts = st.text(st.one_of(st.sampled_from(BORDERS + "ab%_"), st.characters(exclude_categories=["Cs"])), max_size=6)


@given(texts, texts)
def test_range_holds_exactly_the_texts_with_the_prefix(prefix: str, other: str) -> None:
    end = successor(prefix)
    for text in (other, prefix + other, other + prefix):
        inside = text.encode() >= prefix.encode() and (end is None or text.encode() < end.encode())
        assert inside == text.startswith(prefix)


@given(texts)
def test_successor_is_storable_and_greater(prefix: str) -> None:
    end = successor(prefix)
    if end is not None:
        assert end.encode() > prefix.encode()


@pytest.mark.parametrize("prefix", ["", "\U0010ffff", "\U0010ffff\U0010ffff"])
def test_nothing_comes_after_the_last_code_point(prefix: str) -> None:
    assert successor(prefix) is None


@given(texts, st.lists(texts, max_size=8, unique=True))
def test_database_finds_by_range_what_starts_with_the_prefix(prefix: str, ids: list[str]) -> None:
    condition, bounds = prefix_range(prefix)
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE rollouts (rollout_id TEXT)")
        db.executemany("INSERT INTO rollouts VALUES (?)", [(text,) for text in ids])
        found = db.execute(f"SELECT rollout_id FROM rollouts WHERE 1 = 1{condition}", bounds).fetchall()
    assert {row[0] for row in found} == {text for text in ids if text.startswith(prefix)}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 15, 17, 63, 64, 65, 255, 256, 257, 600])
def test_chunks_insert_every_row_once_and_in_order(count: int) -> None:
    rows = [(number, f"row {number}") for number in range(count)]
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        for text, parameters in RowInsert("t", ("a", "b")).chunks(rows):
            db.execute(text, parameters)
        assert db.execute("SELECT a, b FROM t ORDER BY rowid").fetchall() == rows


@pytest.mark.parametrize("count", [1, 2, 4, 5, 64, 100, 256])
def test_condition_on_any_of_some_values_takes_one_of_a_few_sizes(count: int) -> None:
    text, parameters = SqliteDialect().is_any("a", range(count))
    assert text.count("?") == len(parameters) >= count
    assert list(parameters[:count]) == list(range(count))
    assert set(parameters[count:]) <= {None}
