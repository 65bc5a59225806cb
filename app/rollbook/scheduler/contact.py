"""Since when a scheduler has heard the ledger accept its beats without a break.

After an outage of the database every beat is old, those of the living too. Who comes back first must not take the
others for dead before they could beat again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rollbook.ledger.decide import MICROSECONDS


class Contact:
    """Told of every beat, whether the ledger accepted it."""

    def __init__(
        self,
        ledger_clock: Callable[[], int],
        *,
        longest_gap_sec: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Two accepted beats further apart than ``longest_gap_sec`` are a break between them.

        They are so by either clock: this host's ``monotonic`` (seconds) stands still while the machine sleeps, and
        the ledger's (microseconds) may be set.
        """
        self._ledger_clock = ledger_clock
        self._monotonic = monotonic
        self._longest_gap_sec = longest_gap_sec
        self._since: float | None = None
        self._last = (0.0, 0)

    def accepted(self) -> None:
        """A beat was accepted just now."""
        if self._broken():
            self._since = self._monotonic()
        self._last = (self._monotonic(), self._ledger_clock())

    def failed(self) -> None:
        """A beat was not accepted."""
        self._since = None

    @property
    def lasts_sec(self) -> float:
        """How long every beat was accepted in time; 0 right after a break."""
        return 0.0 if self._since is None or self._broken() else self._monotonic() - self._since

    def _broken(self) -> bool:
        ours, ledgers = self._last
        gap_sec = max(self._monotonic() - ours, abs(self._ledger_clock() - ledgers) / MICROSECONDS)
        return self._since is None or gap_sec > self._longest_gap_sec
