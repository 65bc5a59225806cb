"""A rollout server that answers by script, behind httpx's own transport seam, and the answers tests need."""

import asyncio
import json
from typing import Any, NamedTuple

import httpx

from rollbook_client import RolloutClient, RolloutHandle
from tests.unit.client.virtual_time import now

URL = "http://rollouts.test"
CHAT_URL = "http://chat.test/v1"
LEASE_TOKEN = "token-" + "x" * 40


class Step(NamedTuple):
    """One answer: after so many seconds, a response or a transport's error."""

    outcome: httpx.Response | Exception
    takes_sec: float = 0.0


class Seen(NamedTuple):
    """One request that arrived, and when, in the loop's seconds."""

    request: httpx.Request
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.request.content)


class ScriptedServer:
    """Gives its steps in order, one per request; a request beyond the last is an error."""

    def __init__(self, *steps: Step | httpx.Response | Exception) -> None:
        self._steps = [step if isinstance(step, Step) else Step(step) for step in steps]
        self.seen: list[Seen] = []

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(Seen(request, now()))
        assert self._steps, f"one request too many: {request.method} {request.url}"
        step = self._steps.pop(0)
        if step.takes_sec:
            await asyncio.sleep(step.takes_sec)
        if isinstance(step.outcome, Exception):
            raise step.outcome
        return step.outcome

    @property
    def gaps_sec(self) -> list[float]:
        """Seconds between one request's arrival and the next one's."""
        return [round(after.at - before.at, 6) for before, after in zip(self.seen, self.seen[1:], strict=False)]

    def client(
        self, *, url: str = URL, api_key: str | None = None, admission_timeout_sec: float | None = None
    ) -> RolloutClient:
        """A client whose every request this server answers."""
        return RolloutClient(
            url=url,
            api_key=api_key,
            admission_timeout_sec=admission_timeout_sec,
            http_client=httpx.AsyncClient(transport=httpx.MockTransport(self.handle)),
        )

    async def admit(self, rollout_id: str = "r1") -> RolloutHandle:
        """A handle whose admission was the first step."""
        return await self.client().run_rollout_async([], CHAT_URL, rollout_id)


def admitted(
    rollout_id: str = "r1", *, wait_sec: float = 30.0, lease_sec: float = 120.0, status: str = "queued"
) -> httpx.Response:
    return httpx.Response(
        202,
        json={
            "rollout_id": rollout_id,
            "status": status,
            "polling_lease_token": LEASE_TOKEN,
            "result_wait_timeout_sec": wait_sec,
            "polling_lease_timeout_sec": lease_sec,
        },
    )


def result(status: str, rollout_id: str = "r1", **fields: Any) -> httpx.Response:
    body = {"rollout_id": rollout_id, "status": status, "sample": None, "err_message": None, "err_category": None}
    return httpx.Response(200, json=body | fields)


def full_queue(retry_after: str | None = None) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(429, headers=headers, json={"detail": "rollout queue is full; retry later"})
