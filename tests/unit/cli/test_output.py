"""What goes to people is safe to look at; what goes to programs is exact."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.cli import output
from rollbook_projections.views import view_sql
from tests.unit.cli.terminals import terminal


@given(st.text())
def test_printable_text_has_no_control_characters_and_can_be_encoded(text: str) -> None:
    shown = output.printable(text)
    shown.encode()
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in shown)
    if text.isascii() and text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\ud800", "\\ud800"),
        ("ü, 東", "ü, 東"),
    ],
)
def test_printable_text_escapes_what_moves_cursors(text: str, shown: str) -> None:
    assert output.printable(text) == shown


@pytest.mark.parametrize(
    "value", [{"a": 1}, {"text": "\ud800"}, {"text": "ü", "big": 2**53 + 1}, {"list": [None, 1e308]}]
)
def test_json_line_is_one_line_and_reads_back_unchanged(value: dict[str, object]) -> None:
    line = output.json_line(value)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == value


def test_raw_parts_are_spliced_into_json_as_they_are() -> None:
    raw = msgspec.Raw(b'{"n":12345678901234567890123}')
    assert output.json_line({"payload": raw}) == b'{"payload":{"n":12345678901234567890123}}\n'
    assert json.loads(output.json_line({"payload": raw, "error": "\ud800"}))["payload"]["n"] == 12345678901234567890123


def test_times_are_utc_with_milliseconds() -> None:
    assert output.time_text(1_700_000_000_123_456) == "2023-11-14 22:13:20.123Z"
    assert output.time_text(1_700_000_000_999_600) == "2023-11-14 22:13:21.000Z"
    assert output.time_text(None) == ""


@given(st.integers(0, 4_102_444_800_000_000))
def test_times_are_the_same_as_in_the_sql_views(at_us: int) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        (text,) = db.execute(f"SELECT {view_sql('{iso:?}', 'sqlite')}", (at_us,)).fetchone()
    assert output.time_text(at_us) == text.replace("T", " ")


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        (0, "0.0 ms"),
        (4_230, "4.2 ms"),
        (9_960, "10 ms"),
        (417_400, "417 ms"),
        (999_400, "999 ms"),
        (999_600, "1.000 s"),
        (1_500_400, "1.500 s"),
        (75_000_000, "75.000 s"),
    ],
)
def test_durations_below_a_second_are_milliseconds(duration_us: int, text: str) -> None:
    assert output.duration_text(1_000, 1_000 + duration_us) == text


def test_today_is_left_out_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us = time.time_ns() // 1_000
    assert output.moment_text(now_us) == output.time_text(now_us)
    with terminal(monkeypatch):
        # Midnight may pass between reading the clock and the line.
        assert output.moment_text(now_us) in (output.time_text(now_us).partition(" ")[2], output.time_text(now_us))
        assert output.moment_text(1_700_000_000_000_000) == "2023-11-14 22:13:20.000Z"
