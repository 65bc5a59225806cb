"""Polls one rollout's result: each poll is one long GET with its retries, bounded by the polling lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import httpx

from rollbook_client.answers import read_result
from rollbook_client.connections import Connections
from rollbook_client.errors import RolloutProtocolError
from rollbook_client.messages import POLLING_LEASE_HEADER, RolloutInitResponse, RolloutResultResponse
from rollbook_client.requests import result_path
from rollbook_client.retries import RESULT_GRACE_SEC, ResultRetries, told_briefly

logger = logging.getLogger(__name__)


class ResultPoller:
    """Polls with one admission's lease token, and keeps the deadline of the lease as last confirmed.

    `lease_deadline` is on the running loop's clock. A poll's start confirms the lease once its answer is a valid 200:
    the renewal happened no earlier. What failed confirms nothing.
    """

    def __init__(
        self,
        connections: Connections,
        admission: RolloutInitResponse,
        *,
        url: str,
        headers: Mapping[str, str],
        lease_deadline: float,
    ) -> None:
        self.admission = admission
        self._connections = connections
        self._lease_deadline = lease_deadline
        self._url = url + result_path(admission.rollout_id)
        self._headers = {**headers, POLLING_LEASE_HEADER: admission.polling_lease_token}
        self._timeout_sec = admission.result_wait_timeout_sec + RESULT_GRACE_SEC

    async def poll(self) -> RolloutResultResponse:
        """The rollout's result once its status changed, or as it stands when the server's wait is over.

        Raises:
            RolloutProtocolError: the server's answer is an error or no result; a gateway's 502, 503 or 504 only after
                its retries.
            httpx.TransportError: the request failed; a broken connection or a missing answer only after its retries.
        """
        clock = asyncio.get_running_loop().time
        retries = ResultRetries(request_timeout_sec=self._timeout_sec, lease_deadline=self._lease_deadline)
        earlier: httpx.TransportError | RolloutProtocolError | None = None
        while True:
            # Only a retry is cut at the deadline: the first request may be what renews the lease after all.
            cut = asyncio.timeout_at(None if earlier is None else self._lease_deadline)
            started_at = clock()
            try:
                async with cut:
                    response = await self._connections.request(
                        "GET", self._url, headers=self._headers, timeout_sec=self._timeout_sec
                    )
                result = read_result(response, self.admission.rollout_id)
            except TimeoutError as error:
                if earlier is None or not cut.expired():
                    raise
                raise earlier from error
            except (httpx.TransportError, RolloutProtocolError) as error:
                delay_sec = retries.next_delay_sec(error, now=clock())
                if delay_sec is None:
                    raise
                earlier = error
            else:
                self._lease_deadline = started_at + self.admission.polling_lease_timeout_sec
                return result
            logger.warning(
                "poll of rollout %r failed (%s); trying again in %.2f s",
                self.admission.rollout_id,
                told_briefly(earlier),
                delay_sec,
            )
            await asyncio.sleep(delay_sec)
            # The sleep may have taken longer than asked.
            if not retries.fits(now=clock()):
                raise earlier
