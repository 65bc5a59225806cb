"""The turn-taking of writing processes: an advisory file lock with a limit.

SQLite's own busy timeout lets one process starve the others; `flock` hands the turn on.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

FIRST_PAUSE_SEC = 0.000_05
LONGEST_PAUSE_SEC = 0.001


class FileLock:
    """One descriptor, one lock; not shared between connections. Called from the writer's thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_sec: float) -> None:
        """Take the lock.

        Raises:
            TimeoutError: another process held it for longer than ``timeout_sec``.
            OSError: the lock file cannot be opened.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + timeout_sec
        pause = FIRST_PAUSE_SEC
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if timeout_sec <= 0 or time.monotonic() >= deadline:
                    raise TimeoutError(f"another process held {self._path} for over {timeout_sec:g} s") from None
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SEC)

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
