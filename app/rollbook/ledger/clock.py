"""Time in microseconds since the epoch, UTC: the host's, and a database's as seen from here."""

from __future__ import annotations

import time


def host_clock_us() -> int:
    """The host's time."""
    return time.time_ns() // 1_000


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


LARGE_SKEW_US = 5_000_000


def clock_trouble(skew_us: int) -> str | None:
    """What is wrong with a host's clock that the ledger's is so far ahead of; None where nothing is.

    Leases and times in the ledger do not depend on it; logs, and what workflows write, do.
    """
    if abs(skew_us) < LARGE_SKEW_US:
        return None
    way = "behind" if skew_us > 0 else "ahead of"
    return f"clock: this host's is {abs(skew_us) / 1_000_000:.0f} s {way} the database's; set it right (NTP)"


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
