"""The pauses between a supervisor's restarts, and how it words an end."""

from __future__ import annotations

import signal

import pytest

from rollbook.supervisor import Backoff, describe_exit


def test_pauses_double_up_to_five_seconds() -> None:
    backoff = Backoff()
    assert [backoff.pause_sec(0.01) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_pause_is_short_again_after_ten_healthy_seconds() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.pause_sec(9.9)
    assert backoff.pause_sec(10.0) == 0.1
    assert backoff.pause_sec(0.0) == 0.2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (3, "ended with code 3"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
    ],
)
def test_end_of_a_process_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
