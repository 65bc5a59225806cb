"""One admission on the wire: its tries until there is an answer, and what is known of it when its time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx

from rollbook_client.answers import read_admission
from rollbook_client.errors import RolloutAdmissionTimeoutError, RolloutProtocolError
from rollbook_client.messages import RolloutInitResponse
from rollbook_client.retries import AdmissionRetries, may_have_arrived, retry_after_sec, told_briefly

logger = logging.getLogger(__name__)


class Admitted(NamedTuple):
    """The server's answer, and when the request that got it was sent (on the loop's clock)."""

    answer: RolloutInitResponse
    requested_at: float


class Admission:
    """Sends one admission with `send` until it is answered. 429 is asked again, whoever calls.

    `repeatable` says that the caller brought an idempotency key. Then a lost connection and 502, 503 and 504 are asked
    again too: until `timeout_sec`, or for two minutes of failures where that is None.
    """

    def __init__(
        self,
        send: Callable[[], Awaitable[httpx.Response]],
        *,
        rollout_id: str,
        timeout_sec: float | None,
        repeatable: bool,
    ) -> None:
        self._send = send
        self._rollout_id = rollout_id
        self._timeout_sec = timeout_sec
        self._retries = AdmissionRetries(bounded=timeout_sec is None) if repeatable else None
        self._under_way = False
        self._in_doubt = False
        """Whether an earlier try may have arrived, though its answer did not say so."""
        self._last_failure = ""

    async def run(self) -> Admitted:
        """As `RolloutClient.run_rollout_async` says."""
        clock = asyncio.get_running_loop().time
        limit = asyncio.timeout(self._timeout_sec)
        try:
            async with limit:
                while True:
                    # A limit that is over already fires at the next suspension, which may be inside the request.
                    if (deadline := limit.when()) is not None and deadline <= clock():
                        raise self._timeout()
                    requested_at = clock()
                    outcome = await self._try()
                    if isinstance(outcome, RolloutInitResponse):
                        return Admitted(outcome, requested_at)
                    await asyncio.sleep(outcome)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._timeout() from error

    async def _try(self) -> RolloutInitResponse | float:
        """The answer, or in how many seconds to ask again."""
        retry_after = None
        try:
            self._under_way = True
            response = await self._send()
            self._under_way = False
            retry_after = response.headers.get("Retry-After")
            if response.status_code == 429:
                if self._retries is not None:
                    self._retries.answered()
                return retry_after_sec(retry_after)
            return read_admission(response, self._rollout_id)
        except (httpx.TransportError, RolloutProtocolError) as error:
            self._under_way = False
            return self._after(error, retry_after=retry_after)

    def _after(self, error: httpx.TransportError | RolloutProtocolError, *, retry_after: str | None) -> float:
        """The seconds until the next try; raises the error if it is final."""
        now = asyncio.get_running_loop().time()
        delay_sec = (
            None if self._retries is None else self._retries.next_delay_sec(error, retry_after=retry_after, now=now)
        )
        if delay_sec is None:
            if self._in_doubt and isinstance(error, RolloutProtocolError) and error.status_code == 409:
                raise RolloutProtocolError(
                    f"{error}; if nobody else uses this id, an earlier try of this call was admitted, by a server that "
                    "does not know Idempotency-Key, which ends that rollout when its lease is over",
                    status_code=409,
                ) from error
            raise error
        self._in_doubt = self._in_doubt or may_have_arrived(error)
        self._last_failure = told_briefly(error)
        logger.warning(
            "admission of rollout %r failed (%s); trying again in %.2f s",
            self._rollout_id,
            self._last_failure,
            delay_sec,
        )
        return delay_sec

    def _timeout(self) -> RolloutAdmissionTimeoutError:
        in_doubt = self._under_way or self._in_doubt
        message = f"the admission of rollout {self._rollout_id!r} did not end within {self._timeout_sec} s"
        if self._last_failure:
            message += f", the last failure being {self._last_failure}"
        if in_doubt:
            again = (
                "with a new rollout_id, or with an idempotency_key of yours in both calls"
                if self._retries is None
                else "with the same idempotency_key"
            )
            message += (
                "; the server may have admitted it, and ends an admitted rollout that nobody polls when its lease is "
                f"over; try again {again}"
            )
        else:
            message += "; the server had not admitted it; try again, or raise admission_timeout_sec"
        return RolloutAdmissionTimeoutError(message, rollout_id=self._rollout_id, may_have_been_admitted=in_doubt)
