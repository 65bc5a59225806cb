"""When a request is repeated, and how long after: arithmetic only, no clock and no I/O.

All numbers are the protocol's; times are seconds on whatever monotonic clock the caller uses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import httpx

from rollbook_client.errors import RolloutProtocolError

TRANSPORT_DELAYS_SEC = (0.1, 0.5)
GATEWAY_DELAYS_SEC = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GATEWAY_STATUS_CODES = frozenset({502, 503, 504})

# Added to the server's long-poll wait: how late its answer may be.
RESULT_GRACE_SEC = 10.0

# For how long an admission is repeated while nothing but errors come back, where its caller set no time.
ADMISSION_REPEAT_SEC = 120.0

DEFAULT_RETRY_AFTER_SEC = 1.0
MIN_RETRY_AFTER_SEC = 0.05
MAX_RETRY_AFTER_SEC = 60.0


def retry_after_sec(header: str | None) -> float:
    """How long to wait by `Retry-After`: its seconds between 0.05 and 60, and 1 if it is absent or unreadable."""
    if header is None:
        return DEFAULT_RETRY_AFTER_SEC
    try:
        asked_sec = float(header)
    except ValueError:
        return DEFAULT_RETRY_AFTER_SEC
    if not math.isfinite(asked_sec):
        return DEFAULT_RETRY_AFTER_SEC
    return min(max(asked_sec, MIN_RETRY_AFTER_SEC), MAX_RETRY_AFTER_SEC)


def may_have_arrived(error: httpx.TransportError | RolloutProtocolError) -> bool:
    """Whether the server may have done what was asked, for all that this error says."""
    return not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def told_briefly(error: httpx.TransportError | RolloutProtocolError) -> str:
    """An error in a word or two, for a line of log."""
    return f"HTTP {error.status_code}" if isinstance(error, RolloutProtocolError) else type(error).__name__


class AdmissionRetries:
    """The retry plan of one admission that is safe to repeat, because its caller gave it an idempotency key.

    The back-offs are those of a gateway's errors, the last one again and again; a `Retry-After` goes first. `bounded`
    ends them two minutes after the first of the errors that came one after the other.
    """

    def __init__(self, *, bounded: bool) -> None:
        self._bounded = bounded
        self.answered()

    def answered(self) -> None:
        """The server is there: the next error begins the plan anew."""
        self._delays = itertools.chain(GATEWAY_DELAYS_SEC, itertools.repeat(GATEWAY_DELAYS_SEC[-1]))
        self._deadline: float | None = None

    def next_delay_sec(self, error: Exception, *, retry_after: str | None, now: float) -> float | None:
        """The back-off before the next try, or None if this error is final."""
        if not self._passes(error):
            return None
        if self._deadline is None:
            self._deadline = now + ADMISSION_REPEAT_SEC
        delay_sec = next(self._delays)
        if retry_after is not None:
            delay_sec = retry_after_sec(retry_after)
        return None if self._bounded and now + delay_sec > self._deadline else delay_sec

    def _passes(self, error: Exception) -> bool:
        if isinstance(error, RolloutProtocolError):
            return error.status_code in GATEWAY_STATUS_CODES
        # Beside these there is what no waiting cures: a scheme or a request that cannot be, a pool that is too small.
        passing = httpx.NetworkError | httpx.RemoteProtocolError | httpx.TimeoutException
        return isinstance(error, passing) and not isinstance(error, httpx.PoolTimeout)


class ResultRetries:
    """The two retry plans of one result GET; a new GET starts with new plans.

    A broken connection and a gateway's error count on plans of their own. `lease_deadline` is when the last confirmed
    lease ends: only what fits before it is retried, because a failed request may never have reached the server and so
    extends nothing.
    """

    def __init__(self, *, request_timeout_sec: float, lease_deadline: float) -> None:
        self._request_timeout_sec = request_timeout_sec
        self._lease_deadline = lease_deadline
        self._transport: Iterator[float] = iter(TRANSPORT_DELAYS_SEC)
        self._gateway: Iterator[float] = iter(GATEWAY_DELAYS_SEC)

    def next_delay_sec(self, error: Exception, *, now: float) -> float | None:
        """The back-off before the next try, or None if this error is final."""
        delay_sec = next(self._plan(error), None)
        if delay_sec is None or not self.fits(now=now + delay_sec):
            return None
        return delay_sec

    def fits(self, *, now: float) -> bool:
        """Whether one whole request that starts now ends before the lease does."""
        return now + self._request_timeout_sec < self._lease_deadline

    def _plan(self, error: Exception) -> Iterator[float]:
        if isinstance(error, httpx.RemoteProtocolError | httpx.NetworkError | httpx.ReadTimeout):
            return self._transport
        if isinstance(error, RolloutProtocolError) and error.status_code in GATEWAY_STATUS_CODES:
            return self._gateway
        return iter(())
