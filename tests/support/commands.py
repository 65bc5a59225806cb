"""Running `rollbook`: in this process where that is enough, else as the process that users start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.cli.app import run

ROOT = Path(__file__).parents[2]
LIMIT_SEC = 60


class Outcome(msgspec.Struct, frozen=True):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error_line(self) -> str:
        """The one line on stderr, without the leading ``rollbook:``."""
        assert self.err.endswith("\n") and self.err.count("\n") == 1, f"not one line: {self.err!r}"
        assert self.err.startswith("rollbook: ")
        return self.err.removeprefix("rollbook: ").rstrip("\n")


class CommandLine:
    """Calls the command line in this process, always with the same ledger."""

    def __init__(self, database_url: str, capture: pytest.CaptureFixture[str]) -> None:
        self.database_url = database_url
        self._capture = capture

    def __call__(self, *arguments: str) -> Outcome:
        self._capture.readouterr()
        code = run(arguments)
        captured = self._capture.readouterr()
        return Outcome(code, captured.out, captured.err)


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`rollbook` as a process of its own, with pipes for its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "rollbook", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def outcome(process: subprocess.Popen[str]) -> Outcome:
    """Wait for the end of a started command."""
    out, err = process.communicate(timeout=LIMIT_SEC)
    return Outcome(process.returncode, out, err)


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}
