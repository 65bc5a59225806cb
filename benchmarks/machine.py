"""The machine that measures: what it is, and waiting for other work on it to pause."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

BUSY_SHARE = 0.25
PROBE_SEC = 0.1
PAUSE_SEC = 0.3
_GIB = 1024**3


class Patience:
    """Waits for a quiet machine before a sample, with a limit on all its waits together."""

    def __init__(self, limit_sec: float = 20.0) -> None:
        self._left_sec = limit_sec
        self.disturbed = 0
        """Samples that began although other processes used the machine."""

    def wait(self) -> None:
        """Return once other processes leave most of the CPUs idle, or the patience is used up."""
        while _busy_share() > BUSY_SHARE:
            if self._left_sec <= 0:
                self.disturbed += 1
                return
            self._left_sec -= PROBE_SEC + PAUSE_SEC
            time.sleep(PAUSE_SEC)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says about it."""
        if not self.disturbed:
            return ()
        return (f"{self.disturbed} samples began while other processes used the machine: trust the ratios.",)


def _busy_share() -> float:
    before = _cpu_times()
    time.sleep(PROBE_SEC)
    after = _cpu_times()
    total = after[0] - before[0]
    return 1 - (after[1] - before[1]) / total if total else 0.0


def _cpu_times() -> tuple[int, int]:
    """All and idle ticks of all CPUs."""
    line = Path("/proc/stat").read_text().split("\n", 1)[0]
    ticks = [int(word) for word in line.split()[1:]]
    return sum(ticks[:8]), ticks[3] + ticks[4]


def describe() -> str:
    """The machine in a line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return (
        f"{os.cpu_count()} CPUs ({platform.machine()}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"CPython {platform.python_version()}"
    )
