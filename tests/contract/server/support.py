"""A service on a real ledger, called through its application; the test plays the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import msgspec
from litestar import Litestar

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.server.app import build_app
from rollbook.server.member import ApiMember
from rollbook.server.service import ApiService
from rollbook.settings import ApiSettings
from rollbook_client.messages import POLLING_LEASE_HEADER

QUEUE = "flow.py"
SCHEDULER = "scheduler-1"
KEY = "k" * 20
URL = "http://127.0.0.1:9/v1"
LIMIT_SEC = 60
LOOK_SEC = 0.02
SAMPLE = (
    b'{"messages":[{"role":"assistant","content":"42"}],"label":"42","reward":1.0,'
    b'"remove_sample":false,"metrics":{},"extra_fields":{}}'
)


def admission_body(rollout_id: str = "r-1", **fields: Any) -> dict[str, Any]:
    return {
        "initial_messages": [{"role": "user", "content": "6 x 7?"}],
        "chat_completions_url": URL,
        "rollout_id": rollout_id,
        **fields,
    }


class Api:
    """One API under test."""

    def __init__(self, ledger: Ledger, service: ApiService, app: Litestar, http: httpx.AsyncClient) -> None:
        self.ledger = ledger
        self.service = service
        self.app = app
        self.http = http

    async def admit(self, rollout_id: str = "r-1", **fields: Any) -> httpx.Response:
        return await self.http.post("/rollout", json=admission_body(rollout_id, **fields))

    async def admitted(self, rollout_id: str = "r-1", **fields: Any) -> str:
        """The polling token of a rollout that is now admitted."""
        response = await self.admit(rollout_id, **fields)
        assert response.status_code == 202, response.text
        token: str = response.json()["polling_lease_token"]
        return token

    async def poll(self, token: str, rollout_id: str = "r-1") -> httpx.Response:
        return await self.http.get(f"/rollout/{rollout_id}/result", headers={POLLING_LEASE_HEADER: token})

    async def cancel(self, **selector: Any) -> httpx.Response:
        return await self.http.post("/rollout/cancel", json=selector)

    async def scheduler(self, *, capacity: int = 4) -> None:
        """Register the scheduler that the test plays."""
        await self.ledger.submit(
            cmd.Register(
                member_id=SCHEDULER,
                kind="scheduler",
                host="host",
                pid=1,
                dead_after_us=15_000_000,
                entrypoint=QUEUE,
                queues=(QUEUE,),
                capacity=capacity,
            )
        )

    async def claim(self) -> None:
        """Claim everything that waits."""
        await self.scheduler()
        await self.ledger.submit(cmd.Claim(SCHEDULER, (QUEUE,), 100))

    async def enter(self, rollout_id: str = "r-1", *, phase: Any = "running") -> None:
        await self.ledger.submit(cmd.EnterPhase(rollout_id, 1, SCHEDULER, phase))

    async def finish(self, rollout_id: str = "r-1", *, sample: bytes | None = SAMPLE, **outcome: Any) -> None:
        command = cmd.FinishAttempt(rollout_id, 1, SCHEDULER, "success", sample=sample)
        await self.ledger.submit(msgspec.structs.replace(command, **outcome))

    async def run(self, rollout_id: str = "r-1", *, sample: bytes | None = SAMPLE, **outcome: Any) -> None:
        """Bring a waiting rollout to its end."""
        await self.claim()
        await self.enter(rollout_id)
        await self.finish(rollout_id, sample=sample, **outcome)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until commits have brought about what the test needs.

        It also looks without a pulse, since a lease renewal need not give one.
        """
        async with asyncio.timeout(LIMIT_SEC):
            while not await condition():
                await self.service.pulse.wait(LOOK_SEC)

    async def seq(self, rollout_id: str = "r-1") -> int:
        """How many events the rollout has."""
        return (await self.service.state(rollout_id)).seq

    async def event_types(self, rollout_id: str = "r-1") -> list[str]:
        return [event.type for event in await self.ledger.reader.events_page(rollout_id=rollout_id)]


@asynccontextmanager
async def serving(database_url: str, *, member: bool = False, **changes: Any) -> AsyncIterator[Api]:
    """An API on a migrated ledger; ``member`` registers it as an API process does."""
    settings = msgspec.structs.replace(
        ApiSettings(
            database_url=database_url,
            queue=QUEUE,
            result_wait_timeout_sec=0.05,
            polling_lease_timeout_sec=60.0,
        ),
        **changes,
    )
    ledger = await Ledger.open(settings.database_url, migrate=False)
    service = ApiService(ledger, settings)
    api_member = ApiMember(ledger, lease_timeout_sec=60.0, accepting=lambda: service.accepting)
    if member:
        await api_member.start()
    app = build_app(service)
    headers = {} if settings.api_key is None else {"authorization": f"Bearer {settings.api_key}"}
    transport = httpx.ASGITransport(cast(Any, app))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, verify=False) as http:
            yield Api(ledger, service, app, http)
    finally:
        if member:
            await api_member.stop()
        await ledger.close()
