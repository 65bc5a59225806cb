"""Moments as operators write them."""

from __future__ import annotations

import pytest

from rollbook.ledger.past import Moment, moment_of, time_of

NOW = 1_893_456_000_000_000  # 2030-01-01T00:00:00Z
HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-01T00:00:00Z", NOW),
        ("2030-01-01", NOW),
        ("2030-01-01 00:00", NOW),
        ("2030-01-01T02:00:00+02:00", NOW),
        ("2030-01-01T00:00:00.000001Z", NOW + 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("20300101T000000Z", NOW),
        ("-90s", NOW - 90_000_000),
        ("-5m", NOW - 300_000_000),
        ("-2h", NOW - 2 * HOUR),
        ("-30d", NOW - 30 * 24 * HOUR),
        ("-8w", NOW - 8 * 7 * 24 * HOUR),
    ],
)
def test_times_are_read_to_the_microsecond(text: str, expected: int) -> None:
    assert time_of(text, now_us=NOW) == expected
    if not text.isdigit():
        assert moment_of(text, now_us=NOW) == Moment(at=expected)


@pytest.mark.parametrize("text", ["", "soon", "2h", "-2", "-h", "-2y", "2030-13-01", "1e5", "-1.5h", "٣"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="-2h"):
        moment_of(text, now_us=NOW)


def test_digits_are_a_position() -> None:
    assert moment_of("1700000000", now_us=NOW) == Moment(position=1_700_000_000)


@pytest.mark.parametrize(
    ("moment", "takes"), [(Moment(position=5), [True, True, False]), (Moment(at=50), [True, True, False])]
)
def test_the_moment_itself_counts(moment: Moment, takes: list[bool]) -> None:
    assert [moment.takes(position, position * 10) for position in (4, 5, 6)] == takes
