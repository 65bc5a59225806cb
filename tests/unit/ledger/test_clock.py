"""The database's time as a process tells it on: slow answers do not set it back."""

from __future__ import annotations

import pytest

from rollbook.ledger import clock as clock_module
from rollbook.ledger.clock import FRESH_US, SLOW_ANSWER_US, SharedClock


class Monotonic:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    made = Monotonic()
    monkeypatch.setattr(clock_module, "monotonic_us", made)
    return made


def test_time_goes_on_from_the_last_answer(here: Monotonic) -> None:
    clock = SharedClock()
    clock.heard(1_000_000, took_us=500)
    here.now += 250_000
    assert clock() == 1_250_000


def test_slow_answer_is_passed_over_while_a_good_one_is_fresh(here: Monotonic) -> None:
    clock = SharedClock()
    clock.heard(1_000_000, took_us=500)
    here.now += 400_000
    clock.heard(1_000_100, took_us=SLOW_ANSWER_US + 1)
    assert clock() == 1_400_000


def test_slow_answer_is_better_than_an_old_or_no_one(here: Monotonic) -> None:
    clock = SharedClock()
    clock.heard(1_000_000, took_us=SLOW_ANSWER_US + 1)
    assert clock() == 1_000_000
    here.now += FRESH_US
    clock.heard(5_000_000, took_us=SLOW_ANSWER_US + 1)
    assert clock() == 5_000_000
