"""Logs and printed text of user code, without the secrets of the rollouts that run meanwhile."""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO

from rollbook.backends.scrub import SecretTexts, scrub


class SecretRegistry:
    """The secret texts of all running executions of this process."""

    def __init__(self) -> None:
        self._parts: dict[int, SecretTexts] = {}
        self.texts: SecretTexts = ()

    def add(self, key: int, parts: SecretTexts) -> None:
        """An execution starts."""
        self._parts[key] = parts
        self._gather()

    def remove(self, key: int) -> None:
        """An execution is over."""
        self._parts.pop(key, None)
        self._gather()

    def _gather(self) -> None:
        self.texts = tuple(text for parts in self._parts.values() for text in parts)


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
