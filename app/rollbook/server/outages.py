"""What the log says of requests that the ledger could not serve: once when that begins, and once when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.logformat import about

log = logging.getLogger(__name__)

QUIET_SEC = 5.0
"""Refused clients come again within it, as the answer tells them: only a longer silence means that it is over."""


class Outages:
    """Told of each such request by one event loop; in an outage there are hundreds."""

    def __init__(self, *, lasts: Callable[[], bool], quiet_sec: float = QUIET_SEC) -> None:
        """``lasts`` tells whether the ledger is still away, as far as anything but requests knows."""
        self._lasts = lasts
        self._quiet_sec = quiet_sec
        self._requests = 0
        self._last_at = 0.0

    def met(self, error: LedgerUnavailable, *, rollout_id: str | None = None) -> None:
        """A request is answered 503, or a stream ends. ``rollout_id`` is whom it was about, if anybody."""
        loop = asyncio.get_running_loop()
        self._last_at = loop.time()
        self._requests += 1
        if self._requests == 1:
            text = "requests are answered 503: %s; more of them are not told, but counted"
            log.warning(text, error, extra=about(rollout_id))
            loop.call_later(self._quiet_sec, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        left_sec = self._last_at + self._quiet_sec - loop.time()
        if left_sec > 0 or self._lasts():
            loop.call_later(left_sec if left_sec > 0 else self._quiet_sec, self._look, loop)
            return
        log.warning("requests are served again; answered 503 meanwhile: %d", self._requests)
        self._requests = 0
