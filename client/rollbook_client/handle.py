"""The awaitable handle of one admitted rollout: it polls in the background and tells how far the rollout is."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import msgspec

from rollbook_client.messages import RolloutResultResponse
from rollbook_client.polling import ResultPoller
from rollbook_client.saved import save_admission
from rollbook_client.statuses import RolloutStatus

# A lost attempt steps back to queued and `unknown` is none of these; ended counts as past everything.
_STAGES = {
    RolloutStatus.QUEUED: 0,
    RolloutStatus.RUNNING: 1,
    RolloutStatus.GRADING: 2,
    RolloutStatus.SUCCESS: 3,
    RolloutStatus.FAILURE: 3,
    RolloutStatus.CANCELLED: 3,
}


class RolloutHandle:
    """One rollout being polled. Awaiting it gives the terminal `RolloutResultResponse`.

    Made by `RolloutClient.run_rollout_async` and `RolloutClient.attach`, never directly. Keep the client open until its
    handles are done. Cancelling whoever awaits the handle stops the polling, as with any asyncio task; the rollout then
    ends on the server when its lease does, unless it is attached to in time.
    """

    def __init__(self, poller: ResultPoller) -> None:
        self._poller = poller
        self._status = poller.admission.status
        self._latest_result: RolloutResultResponse | None = None
        self._waiters: list[tuple[int, asyncio.Future[RolloutStatus | None]]] = []
        self._polling = asyncio.get_running_loop().create_task(self._poll_until_terminal())
        # Not in the coroutine's own `finally`: one that is cancelled before its first step never gets there.
        self._polling.add_done_callback(self._release_waiters)

    @property
    def rollout_id(self) -> str:
        """The id it was admitted under."""
        return self._poller.admission.rollout_id

    @property
    def status(self) -> RolloutStatus:
        """The status last seen; that of the admission before the first poll."""
        return self._status

    @property
    def latest_result(self) -> RolloutResultResponse | None:
        """The last poll's answer; None before the first."""
        return self._latest_result

    def __await__(self) -> Generator[Any, None, RolloutResultResponse]:
        return self._polling.__await__()

    async def wait_for_completion(self) -> RolloutResultResponse:
        """The terminal result; the same as awaiting the handle.

        Raises:
            RolloutProtocolError: the server answered a poll with something the protocol does not allow.
            httpx.TransportError: polling failed, its retries included.
            asyncio.CancelledError: the polling was cancelled.
        """
        return await self._polling

    async def wait_for_running(self) -> RolloutStatus:
        """The status once `running` was reached, passed, or the rollout ended; raises what ended the polling before."""
        return await self._wait_for(RolloutStatus.RUNNING)

    async def wait_for_grading(self) -> RolloutStatus:
        """The status once `grading` was reached or the rollout ended; raises what ended the polling before."""
        return await self._wait_for(RolloutStatus.GRADING)

    def done(self) -> bool:
        """Whether polling ended: with a terminal result, an error or a cancellation."""
        return self._polling.done()

    def cancel(self) -> bool:
        """Stop polling, without a word to the server; awaiting the handle then raises `CancelledError`.

        Returns False when polling had already ended. To end the rollout itself: `RolloutClient.cancel_rollout`.
        """
        return self._polling.cancel()

    def save(self) -> bytes:
        """The admission as JSON bytes, with which `RolloutClient.attach` goes on polling from another process.

        They contain the polling lease token: whoever has them can read the result and keep the rollout alive. Keep them
        in a file only its owner reads (mode 0600).
        """
        return save_admission(msgspec.structs.replace(self._poller.admission, status=self._status))

    async def _poll_until_terminal(self) -> RolloutResultResponse:
        while True:
            result = await self._poller.poll()
            self._status = result.status
            self._latest_result = result
            for stage, waiter in self._waiters:
                if self._reached(stage) and not waiter.done():
                    waiter.set_result(result.status)
            if result.status.terminal:
                return result

    async def _wait_for(self, status: RolloutStatus) -> RolloutStatus:
        stage = _STAGES[status]
        if self._reached(stage):
            return self._status
        if not self._polling.done():
            waiter: asyncio.Future[RolloutStatus | None] = asyncio.get_running_loop().create_future()
            self._waiters.append((stage, waiter))
            try:
                # The waiter carries the status that reached the stage: a later poll may have stepped back already.
                reached = await waiter
            finally:
                self._waiters.remove((stage, waiter))
            if reached is not None:
                return reached
        return self._polling.result().status

    def _reached(self, stage: int) -> bool:
        return _STAGES.get(self._status, -1) >= stage

    def _release_waiters(self, _polling: asyncio.Task[RolloutResultResponse]) -> None:
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
