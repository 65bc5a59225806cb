"""JSON log lines: one object each, whatever is logged; the time in UTC, what it is about, exceptions as one field."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import msgspec
import pytest

from rollbook import logs
from rollbook.logformat import JsonFormatter, about, choose_log_format, formatter, log_format
from rollbook.settings import LOG_FORMAT_VARIABLE


def shaped(message: str, *args: object, exc_info: Any = None, **extra: object) -> dict[str, Any]:
    record = logging.getLogger("somewhere").makeRecord(
        "somewhere", logging.WARNING, __file__, 1, message, args, exc_info, extra=extra
    )
    record.created = 1_764_441_738.1239
    line = JsonFormatter("scheduler").format(record)
    assert "\n" not in line
    return msgspec.json.decode(line, type=dict[str, Any])


def test_a_line_says_when_how_bad_where_and_what() -> None:
    line = shaped("%d things", 3)
    assert line.pop("pid") > 0
    assert line == {
        "time": "2025-11-29T18:42:18.123Z",
        "level": "WARNING",
        "logger": "somewhere",
        "message": "3 things",
        "process": "scheduler",
    }


def test_a_line_about_a_rollout_names_it_in_fields() -> None:
    line = shaped("gone", **about("r-1", attempt=2, scheduler="s-1"))
    assert (line["rollout_id"], line["attempt"], line["scheduler"]) == ("r-1", 2, "s-1")
    assert "attempt" not in shaped("gone", **about("r-1"))


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        line = shaped("it failed", exc_info=sys.exc_info())
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize("text", ['a "quoted"\nline', "\ud800", "\x00\x1b[2J", "schön"])
def test_any_text_stays_within_its_line(text: str) -> None:
    line = JsonFormatter("api").format(logging.LogRecord("x", logging.INFO, __file__, 1, text, None, None))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == text


def test_the_environment_chooses_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOG_FORMAT_VARIABLE, raising=False)
    assert not isinstance(formatter("api"), JsonFormatter)
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "text")
    choose_log_format("json")
    assert log_format() == "json"
    assert isinstance(formatter("api"), JsonFormatter)


@pytest.mark.parametrize(
    ("message", "line"), [("start", "rollout r-1: start"), ("rollout r-1 begins", "rollout r-1 begins")]
)
def test_text_lines_name_their_rollout_once(message: str, line: str) -> None:
    record = logging.makeLogRecord({"name": "mathflow", "msg": message, "levelname": "INFO", **about("r-1", attempt=2)})
    shown = formatter("runner", text="%(levelname)s %(name)s: %(message)s")
    assert shown.format(record) == f"INFO mathflow: {line}"
    assert shown.format(record) == f"INFO mathflow: {line}"
    assert JsonFormatter("runner").format(record).count("r-1") == 1 + message.count("r-1")


def test_text_lines_of_no_rollout_name_none() -> None:
    record = logging.makeLogRecord({"msg": "ready"})
    assert formatter("runner", text="%(message)s").format(record) == "ready"


def test_a_form_that_there_is_not_is_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "xml")
    with pytest.raises(ValueError, match="'xml'; set it to text or json"):
        log_format()


def test_lines_to_the_operator_have_the_form_of_the_logs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.say("starting again")
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
    logs.say("ready", descriptor=logs.STDOUT)
    printed = capfd.readouterr()
    assert printed.err == "rollbook: starting again\n"
    assert msgspec.json.decode(printed.out)["message"] == "ready"
