"""A trainer that sends rollouts and wants every result, whatever happens to the processes that it talks to."""

from __future__ import annotations

import asyncio

import httpx

from rollbook.cli.demo.endpoint import ChatEndpoint
from rollbook_client import RolloutClient, RolloutHandle, RolloutProtocolError, RolloutResultResponse

AGAIN_SEC = 0.2
SERVER_ERROR = 500


class Trainer:
    """Sends each rollout under its own id and idempotency key, and comes back to it until there is a result."""

    def __init__(self, client: RolloutClient, endpoint: ChatEndpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self.repeated = 0
        """How often the client gave up, and the trainer did not."""

    async def roll_out(self, rollout_id: str) -> RolloutResultResponse:
        """The rollout's result."""
        handle = await self._admit(rollout_id)
        saved = handle.save()
        while True:
            try:
                return await handle
            except (httpx.TransportError, RolloutProtocolError) as error:
                await self._go_on_after(error)
                handle = self._client.attach(saved)

    async def _admit(self, rollout_id: str) -> RolloutHandle:
        while True:
            try:
                return await self._client.run_rollout_async(
                    [{"role": "user", "content": "What is 47 × 38?"}],
                    self._endpoint.base_url(rollout_id),
                    rollout_id,
                    self._endpoint.api_key,
                    label=rollout_id,
                    idempotency_key=rollout_id,
                )
            except (httpx.TransportError, RolloutProtocolError) as error:
                await self._go_on_after(error)

    async def _go_on_after(self, error: Exception) -> None:
        """A restart of servers is no reason to give up; an answer that says no is."""
        if isinstance(error, RolloutProtocolError) and error.status_code < SERVER_ERROR:
            raise error
        self.repeated += 1
        await asyncio.sleep(AGAIN_SEC)
