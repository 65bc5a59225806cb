"""Since when a scheduler has heard the ledger without a break, by both clocks."""

from __future__ import annotations

import pytest

from rollbook.scheduler.contact import Contact

GAP_SEC = 7.5


class Played:
    """A contact at times that the test sets."""

    def __init__(self) -> None:
        self.sec = 1_000.0
        self.ledger_us = 1_700_000_000_000_000
        self.contact = Contact(lambda: self.ledger_us, longest_gap_sec=GAP_SEC, monotonic=lambda: self.sec)

    def pass_time(self, seconds: float) -> None:
        self.sec += seconds
        self.ledger_us += int(seconds * 1_000_000)

    def beats(self, count: int) -> None:
        for _ in range(count):
            self.pass_time(5.0)
            self.contact.accepted()


@pytest.fixture
def played() -> Played:
    return Played()


def test_contact_lasts_from_the_first_accepted_beat_on(played: Played) -> None:
    assert played.contact.lasts_sec == 0.0
    played.beats(3)
    assert played.contact.lasts_sec == 10.0
    played.pass_time(2.0)
    assert played.contact.lasts_sec == 12.0


def test_refused_beat_is_a_break(played: Played) -> None:
    played.beats(3)
    played.contact.failed()
    assert played.contact.lasts_sec == 0.0
    played.beats(2)
    assert played.contact.lasts_sec == 5.0


def test_beat_that_is_long_in_coming_is_a_break_while_it_does_and_afterwards(played: Played) -> None:
    played.beats(3)
    played.pass_time(GAP_SEC + 0.5)
    assert played.contact.lasts_sec == 0.0
    played.contact.accepted()
    played.pass_time(1.0)
    assert played.contact.lasts_sec == 1.0


@pytest.mark.parametrize("jump_sec", [3_600, -3_600])
def test_jump_of_the_ledgers_clock_is_a_break(played: Played, jump_sec: int) -> None:
    played.beats(3)
    played.ledger_us += jump_sec * 1_000_000
    assert played.contact.lasts_sec == 0.0
    played.beats(2)
    assert played.contact.lasts_sec == 5.0
