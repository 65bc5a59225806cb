"""Logs and printed text of user code, without the secrets of the rollouts that run meanwhile."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections import deque
from typing import TextIO

from rollbook.backends.scrub import SecretTexts, scrub

LONGEST_LINE = 65_536
REMEMBERED_ENDS = 64
"""Executions whose secrets are still scrubbed after their end: tasks and threads they left behind go on talking."""


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
                gathered = {form: name for parts in (*self._ended, *self._running.values()) for form, name in parts}
                self._texts = tuple(sorted(gathered.items(), key=lambda item: len(item[0]), reverse=True))
            return self._texts

    def add(self, key: int, parts: SecretTexts) -> None:
        """An execution starts."""
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

    def __init__(self, stream: TextIO, secrets: SecretRegistry) -> None:
        self._stream = stream
        self._secrets = secrets
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
                self._stream.write(scrub(lines, self._secrets.texts) + "\n")
                self._stream.flush()
            if len(self._line) > LONGEST_LINE:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            line, self._line = self._line, ""
            if line:
                self._stream.write(scrub(line, self._secrets.texts))
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False


class ScrubbingFilter(logging.Filter):
    """Scrubs records of handlers that user code installed itself."""

    def __init__(self, secrets: SecretRegistry) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
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
        return True


def scrub_streams(secrets: SecretRegistry) -> None:
    """From now on, what this process prints and logs to its standard streams is scrubbed."""
    sys.stdout = _Scrubbed(sys.stdout, secrets)
    sys.stderr = _Scrubbed(sys.stderr, secrets)
