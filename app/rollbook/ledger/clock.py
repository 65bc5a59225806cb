"""Time in microseconds since the epoch, UTC: the host's, and a database's as seen from here."""

from __future__ import annotations

import time


def host_clock_us() -> int:
    """The host's time."""
    return time.time_ns() // 1_000


def monotonic_us() -> int:
    """Time since some moment, which nobody sets."""
    return time.monotonic_ns() // 1_000


LARGE_SKEW_US = 5_000_000
SLOW_ANSWER_US = 50_000
FRESH_US = 10_000_000


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
        self._offset_us = host_clock_us() - monotonic_us()
        self._heard_at: int | None = None

    def heard(self, now_us: int, *, took_us: int = 0) -> None:
        """The other clock showed this just now, in an answer that took so long.

        A slow answer is passed over while a good one is fresh: a process that stood still reads old time from it.
        """
        here = monotonic_us()
        if took_us > SLOW_ANSWER_US and self._heard_at is not None and here - self._heard_at < FRESH_US:
            return
        self._heard_at = here
        self._offset_us = now_us - here

    def __call__(self) -> int:
        return monotonic_us() + self._offset_us
