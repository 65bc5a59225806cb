"""Processes of a runtime that are in no group we know: found by what they carry, and ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from .errors import RuntimeFailedError

__all__ = ["HOME_VARIABLE", "end_all", "end_processes_of", "processes_of", "processes_where"]

HOME_VARIABLE = "ROLLBOOK_RUNTIME_HOME"
"""Names the runtime's home to what it starts, so that what was left behind is known by its environment: every program
of a folder, and what makes and keeps a sandbox, with which all that is in it ends."""

PROC = Path("/proc")
_LIMIT_SEC = 10.0
_PAUSE_SEC = 0.005


def processes_of(home: Path) -> list[int]:
    """Living processes that carry the mark of this home, or whose current folder is inside it."""
    mark = os.fsencode(f"{HOME_VARIABLE}={home}")
    inside = str(home)

    def is_ours(process: Path) -> bool:
        if mark in (process / "environ").read_bytes().split(b"\0"):
            return True
        current = str((process / "cwd").readlink()).removesuffix(" (deleted)")
        return current == inside or current.startswith(f"{inside}/")

    return list(processes_where(is_ours))


def processes_where(fits: Callable[[Path], bool]) -> Iterator[int]:
    """Living processes for whose folder of /proc `fits` is true; those that may not be looked into do not count."""
    own = os.getpid()
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == own:
            continue
        with suppress(OSError):  # it ended meanwhile, is a corpse, or is another user's
            if fits(entry) and not _is_corpse(entry):
                yield int(entry.name)


def end_all(find: Callable[[], list[int]], *, what: str) -> None:
    """Kill what `find` gives, until it gives nothing: what is killed may have started more meanwhile. Blocks.

    Raises:
        RuntimeFailedError: some could not be ended within ten seconds.
    """
    deadline = time.monotonic() + _LIMIT_SEC
    while found := find():
        if time.monotonic() > deadline:
            raise RuntimeFailedError(f"processes of {what} could not be ended: {', '.join(map(str, found))}")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SEC)


def end_processes_of(home: Path) -> None:
    """Kill what `processes_of` finds. Blocks. Raises as `end_all` does."""
    end_all(lambda: processes_of(home), what=str(home))


def _is_corpse(process: Path) -> bool:
    # The state follows the name, which is in brackets and may hold anything.
    return (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
