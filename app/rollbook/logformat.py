"""What a line of a log looks like: text for people, or one JSON object for programs, as the environment says."""

from __future__ import annotations

import copy
import json
import logging
import os
from datetime import UTC, datetime
from typing import Literal, cast, get_args

import msgspec

from rollbook.settings import LOG_FORMAT_VARIABLE

LogFormat = Literal["text", "json"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ABOUT = ("rollout_id", "attempt", "scheduler")
"""What a record may say it is about, each an attribute of the record (`extra=about(…)`)."""


def log_format() -> LogFormat:
    """The form of this process's log lines.

    Raises:
        ValueError: the environment names another one.
    """
    chosen = os.environ.get(LOG_FORMAT_VARIABLE) or "text"
    if chosen not in get_args(LogFormat):
        raise ValueError(f"{LOG_FORMAT_VARIABLE} is {chosen!r}; set it to text or json")
    return cast("LogFormat", chosen)


def choose_log_format(chosen: LogFormat) -> None:
    """Set the form for this process and those that it starts."""
    os.environ[LOG_FORMAT_VARIABLE] = chosen


def about(
    rollout_id: str | None = None, *, attempt: int | None = None, scheduler: str | None = None
) -> dict[str, object]:
    """The ``extra`` of a record about a rollout."""
    return {
        name: value for name, value in zip(ABOUT, (rollout_id, attempt, scheduler), strict=True) if value is not None
    }


class TextFormatter(logging.Formatter):
    """A line for people, which names the rollout that it is about unless its message does."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line without exception and stack."""
        rollout_id = getattr(record, "rollout_id", None)
        if rollout_id is None or str(rollout_id) in record.message:
            return super().formatMessage(record)
        named = copy.copy(record)  # other handlers have the record too
        named.message = f"rollout {rollout_id}: {record.message}"
        return super().formatMessage(named)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, process; what it is about; an exception as text."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = _line(record.created, record.levelname, record.name, record.getMessage(), process=self._process)
        for name in ABOUT:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        # As text once and for all: whoever scrubbed it did so there.
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return _encoded(line)


def formatter(process: str, *, text: str = TEXT) -> logging.Formatter:
    """What makes the lines of a process of ours (``api``, ``scheduler``, ``runner``)."""
    return JsonFormatter(process) if log_format() == "json" else TextFormatter(text)


def json_line(message: str, *, time_sec: float, level: str, logger: str, process: str, **about: object) -> str:
    """A line about something that nobody logged, such as what user code printed."""
    return _encoded({**_line(time_sec, level, logger, message, process=process), **about})


def _line(time_sec: float, level: str, logger: str, message: str, *, process: str) -> dict[str, object]:
    at = datetime.fromtimestamp(time_sec, UTC)
    return {
        "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1_000:03d}Z",
        "level": level,
        "logger": logger,
        "message": message,
        "process": process,
        "pid": os.getpid(),
    }


def _encoded(line: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (UnicodeEncodeError, TypeError, ValueError):  # a lone surrogate, or keys that are no texts
        return json.dumps(line, default=str)
