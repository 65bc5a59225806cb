"""Logs and printed text of user code, without the secrets of the rollouts that run meanwhile."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections import deque
from typing import TextIO

from rollbook.backends.scrub import SecretTexts, scrub

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
    """A text stream that writes whole lines, scrubbed; a secret never spans two writes of a line then."""

    def __init__(self, stream: TextIO, secrets: SecretRegistry) -> None:
        self._stream = stream
        self._secrets = secrets
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._line += text
        if "\n" in text:
            lines, _, self._line = self._line.rpartition("\n")
            self._stream.write(scrub(lines, self._secrets.texts) + "\n")
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        if self._line:
            self._stream.write(scrub(self._line, self._secrets.texts))
            self._line = ""
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
