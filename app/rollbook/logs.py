"""Logs of the long-running processes, which never wait for a reader that does not read.

A pipe that nobody empties (a paused pager, a stuck log shipper) would otherwise hold an event loop in `write`, and with
it beats, claims and polls. A line that finds no room in time is dropped and counted.
"""

from __future__ import annotations

import logging
import os
import select
import time

from rollbook.logformat import TEXT, formatter, json_line, log_format

STDOUT = 1
STDERR = 2
CHUNK_BYTES = 512
"""What POSIX lets a pipe take whole, and so without waiting, once it is writable at all."""
PATIENCE_SEC = 0.05
"""How long a slow reader is waited for; one that kept us waiting gets no more patience until it has read."""


class UnwaitingHandler(logging.Handler):
    """Writes lines to a descriptor as far as it takes them at once."""

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop and count it."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._dropped and self._write(self._dropping() + "\n"):
            self._dropped = 0
        if self._dropped or not self._write(line + "\n"):
            self._dropped += 1

    def _dropping(self) -> str:
        text = f"{self._dropped} log lines were dropped: nobody read them"
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def _write(self, text: str) -> bool:
        return write_unwaiting(self._descriptor, text, patience_sec=0.0 if self._dropped else PATIENCE_SEC)


def write_unwaiting(descriptor: int, text: str, *, patience_sec: float = PATIENCE_SEC) -> bool:
    """Write what the descriptor takes, waiting at most ``patience_sec`` for room; whether that was all."""
    data = text.encode("utf-8", "backslashreplace")
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    for start in range(0, len(data), CHUNK_BYTES):
        if not any(event & select.POLLOUT for _, event in poll.poll(patience_sec * 1_000)):
            return False
        try:
            os.write(descriptor, data[start : start + CHUNK_BYTES])
        except OSError:
            return False  # a closed pipe or a full disk: there is nobody to tell
    return True


def log_to_stderr(level: int, *, process: str, text: str = TEXT) -> None:
    """Send this process's logs to standard error, unless they go somewhere already.

    Raises:
        ValueError: the environment names a form of lines that there is not.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = UnwaitingHandler()
    handler.setFormatter(formatter(process, text=text))
    root.addHandler(handler)
    root.setLevel(level)


def say(line: str, *, descriptor: int = STDERR) -> None:
    """One line of ours to the operator, on standard error unless said otherwise, without waiting for a reader."""
    shown = f"rollbook: {line}"
    if log_format() == "json":
        level = "WARNING" if descriptor == STDERR else "INFO"
        shown = json_line(line, time_sec=time.time(), level=level, logger="rollbook", process="rollbook")
    write_unwaiting(descriptor, f"{shown}\n")
