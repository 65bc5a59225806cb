"""Rollbook's programs as processes that begin with everything imported, for tests that start and kill many.

`python -m rollbook…` itself runs wherever one of them starts another: a scheduler's runners, and all under
`rollbook serve`. Tests of how a user starts them start them so.
"""

from __future__ import annotations

import atexit
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

_LAUNCHER = Path(__file__).with_name("launcher.py")
_NUMBER_BYTES = 4


class Launched:
    """A process of the launcher's, with the part of `subprocess.Popen` that tests use. Threads may share it."""

    def __init__(self, answers: int) -> None:
        """Takes over the descriptor of the answers, and waits for the first of them."""
        weakref.finalize(self, os.close, answers)
        self._answers = answers
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code once it has ended, as `subprocess` writes it."""
        with self._lock:
            if self.returncode is None and _has_news(self._answers, 0):
                self.returncode = os.waitstatus_to_exitcode(self._number())
            return self.returncode

    def wait(self, timeout_sec: float) -> int:
        """Wait for the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        deadline = time.monotonic() + timeout_sec
        while (code := self.poll()) is None:
            if not _has_news(self._answers, max(0.0, deadline - time.monotonic())):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_sec)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing when it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        answer = os.read(self._answers, _NUMBER_BYTES)
        assert len(answer) == _NUMBER_BYTES, "the launcher of the tests' processes has ended; see its errors above"
        return int.from_bytes(answer, "little")


def launch(
    module: str,
    arguments: Sequence[str] = (),
    *,
    variables: Mapping[str, str],
    folder: Path,
    output: IO[bytes],
    passed: Mapping[str, int] | None = None,
) -> Launched:
    """`python -m MODULE ARGUMENTS` in a folder, with just these variables, in a process group of its own.

    It reads nothing, writes to one file, and ends with this process. ``passed`` are descriptors that it gets too, by
    the variables that shall tell their numbers. Variables of Python's own come too late for it.
    """
    passed = passed or {}
    request = {
        "module": module,
        "arguments": arguments,
        "variables": variables,
        "folder": str(folder),
        "passed": list(passed),
    }
    answers, told = os.pipe()
    try:
        files = [told, output.fileno(), *passed.values()]
        socket.send_fds(_launcher(), [msgspec.json.encode(request)], files)
    finally:
        os.close(told)
    return Launched(answers)


@functools.cache
def _launcher() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_LAUNCHER), str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in the tests' terminal is not for its processes
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _has_news(descriptor: int, timeout_sec: float) -> bool:
    looking = select.poll()
    looking.register(descriptor, select.POLLIN)
    return bool(looking.poll(timeout_sec * 1000))
