"""Logs and printed text of user code, without the secrets of the rollouts that run meanwhile."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TextIO

from rollbook.logformat import ABOUT, formatter, json_line, log_format
from rollbook.scrub import SecretTexts, joined, scrub

LONGEST_LINE = 65_536
REMEMBERED_ENDS = 64
"""Executions whose secrets are still scrubbed after their end: tasks and threads they left behind go on talking."""


_NOTHING: Mapping[str, object] = MappingProxyType({})

running_about: ContextVar[Mapping[str, object]] = ContextVar("rollbook_running_about", default=_NOTHING)
"""What the running code is executed for: rollout id, attempt, scheduler. Its tasks and `to_thread` inherit it."""


class SecretRegistry:
    """The secret texts of the running executions of this process, and of the last ones that ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # logs may be written by any thread
        self._running: dict[int, SecretTexts] = {}
        self._ended: deque[SecretTexts] = deque(maxlen=REMEMBERED_ENDS)
        self._texts: SecretTexts | None = ()

    @property
    def texts(self) -> SecretTexts:
        """Every text to scrub with what replaces it, the longest first."""
        with self._lock:
            if self._texts is None:
                self._texts = joined(*self._ended, *self._running.values())
            return self._texts

    def add(self, key: int, parts: SecretTexts) -> None:
        """An execution starts, or has more secrets than before; ``parts`` are all of them."""
        with self._lock:
            self._running[key] = parts
            self._texts = None

    def remove(self, key: int) -> None:
        """An execution is over."""
        with self._lock:
            parts = self._running.pop(key, None)
            if parts is not None:
                self._ended.append(parts)
                self._texts = None


class _Scrubbed(io.TextIOBase):
    """A text stream that writes whole lines, scrubbed; a secret never spans two writes of a line then.

    A line without an end is written in pieces of 64 KiB.
    """

    def __init__(
        self, stream: TextIO, secrets: SecretRegistry, *, shaped: Callable[[str], str] = lambda line: line
    ) -> None:
        """``shaped`` makes of each scrubbed line what is written, without a line's end."""
        self._stream = stream
        self._secrets = secrets
        self._shaped = shaped
        self._lock = threading.RLock()  # threads print too
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def reconfigure(self, **_: object) -> None:
        """Programs ask for another encoding or buffering when they start; lines go out at once in any case."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self._line += text
            if "\n" in text:
                lines, _, self._line = self._line.rpartition("\n")
                clean = scrub(lines, self._secrets.texts)
                self._stream.write("\n".join(map(self._shaped, clean.split("\n"))) + "\n")
                self._stream.flush()
            if len(self._line) > LONGEST_LINE:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            line, self._line = self._line, ""
            if line:
                self._stream.write(self._piece(scrub(line, self._secrets.texts)))
            self._stream.flush()

    def _piece(self, line: str) -> str:
        """What is written of a line that has no end yet."""
        return line

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False


class _Told(_Scrubbed):
    """The same for programs: each line becomes a JSON object with the time, and what it was printed for."""

    def __init__(self, stream: TextIO, secrets: SecretRegistry, *, name: str) -> None:
        super().__init__(stream, secrets, shaped=self._object)
        self._name = name

    def _object(self, line: str) -> str:
        about = running_about.get()
        return json_line(line, time_sec=time.time(), level="INFO", logger=self._name, process="runner", **about)

    def _piece(self, line: str) -> str:
        return self._object(line) + "\n"


class ScrubbingFilter(logging.Filter):
    """Scrubs records, those of user code's own handlers too, and notes in them what the code is executed for."""

    def __init__(self, secrets: SecretRegistry) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        about = running_about.get()
        for name in ABOUT:
            if name in about and not hasattr(record, name):
                setattr(record, name, about[name])
        texts = self._secrets.texts
        if texts:
            message = record.getMessage()
            clean = scrub(message, texts)
            if clean != message:
                record.msg, record.args = clean, ()
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = scrub(record.exc_text, texts)
            if record.stack_info:
                record.stack_info = scrub(record.stack_info, texts)
        return True


def scrub_streams(secrets: SecretRegistry) -> None:
    """From now on, what this process prints to its standard streams is scrubbed."""
    sys.stdout = _stream(sys.stdout, secrets, name="stdout")
    sys.stderr = _stream(sys.stderr, secrets, name="stderr")


def _stream(stream: TextIO, secrets: SecretRegistry, *, name: str) -> _Scrubbed:
    return _Told(stream, secrets, name=name) if log_format() == "json" else _Scrubbed(stream, secrets)


def log_scrubbed(secrets: SecretRegistry, *, process: str, stream: TextIO | None = None) -> None:
    """Send this process's logs, scrubbed, to ``stream`` (standard error as it is then), unless they go somewhere.

    Give the stream as it was before `scrub_streams`: lines of logs have their shape already.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(stream if stream is None else _Scrubbed(stream, secrets))
    handler.setFormatter(formatter(process))
    handler.addFilter(ScrubbingFilter(secrets))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
