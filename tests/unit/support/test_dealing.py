"""Tests are dealt whole, slow ones first, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.dealing import dealt

MODULES = [(False, "abcdef"), (True, "RST"), (True, "UV"), (False, "gh"), (True, "W")]


def test_each_worker_begins_with_its_share_of_what_is_slow() -> None:
    assert dealt(MODULES, workers=2) == list("RSTabcd") + list("UVWefgh")


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(), max_size=4))), st.integers(1, 5))
def test_every_test_is_dealt_once(modules: list[tuple[bool, list[int]]], workers: int) -> None:
    named = [(slow, [(at, place) for place in range(len(tests))]) for at, (slow, tests) in enumerate(modules)]
    assert sorted(dealt(named, workers=workers)) == [test for _, tests in named for test in tests]
