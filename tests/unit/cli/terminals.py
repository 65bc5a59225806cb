"""A terminal in place of standard output."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Terminal:
    """What was written to it; read it once, of text that is shorter than the terminal's buffer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def lines(self) -> list[str]:
        return os.read(self._descriptor, 100_000).decode().splitlines()


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int = 80) -> Iterator[Terminal]:
    """Standard output is a terminal without colours, of so many columns."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stdout, monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        patch.setenv("NO_COLOR", "1")
        patch.setattr("sys.stdout", stdout)
        yield Terminal(ours)
    os.close(ours)
