"""What goes to people is safe to look at; what goes to programs is exact."""

from __future__ import annotations

import json
import os
import pty

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.cli import output
from rollbook.cli.following import event_line
from rollbook.ledger.reader import StoredEvent


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
    assert output.time_text(None) == ""
    assert output.seconds_text(0, 1_500_400) == "1.500 s"


def event(payload: str, kind: str = "attempt_ended") -> StoredEvent:
    return StoredEvent(7, 1, "r-1", 3, kind, 1, 1_700_000_000_000_000, payload, b"\0" * 32)


def test_event_line_shows_short_fields_and_leaves_long_ones_out() -> None:
    line = event_line(event('{"attempt":1,"outcome":"lost","reason":null,"sample":{"messages":[]}}'))
    assert line.split() == [
        "7", "2023-11-14", "22:13:20.000Z", "r-1", "3", "attempt_ended", "attempt=1", "outcome=lost", "reason=null",
    ]  # fmt: skip


@pytest.mark.parametrize("payload", ['{"reason":"' + "x" * 100_000 + '"}', '{"reason":"\\ud800\\u0000\\n"}', "[]"])
def test_event_line_is_one_short_line_whatever_the_payload(payload: str) -> None:
    line = event_line(event(payload))
    line.encode()
    assert "\n" not in line and "\0" not in line
    assert len(line) < 400


def test_on_a_terminal_long_ids_are_folded_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        output.put_table(("rollout", "status"), [("x" * 60, "queued")])
        text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert text.count("x") == 60
    assert "…" not in text
    assert all(len(line) <= 40 for line in text.splitlines()[1:])
    assert "\x1b[3" not in text
