"""Time in microseconds since the epoch, UTC: the host's, and a database's as seen from here."""

from __future__ import annotations

import time


def host_clock_us() -> int:
    """The host's time."""
    return time.time_ns() // 1_000


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class SharedClock:
    """Another machine's time, told on from the last moment it was heard.

    It goes on with the host's monotonic clock, so neither a wrong host clock nor one that is set moves it.
    """

    def __init__(self) -> None:
        self._offset_us = host_clock_us() - _monotonic_us()

    def heard(self, now_us: int) -> None:
        """The other clock showed this just now."""
        self._offset_us = now_us - _monotonic_us()

    def __call__(self) -> int:
        return _monotonic_us() + self._offset_us
