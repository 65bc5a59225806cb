"""Rollouts of a LocalBackend that records its model calls, against a real model server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from rollbook import GraderContext, RolloutContext, get_rollout_context
from rollbook.backends.base import ExecutionResult
from rollbook.backends.local import LocalBackend
from rollbook_client.events import Event, ModelCalled
from tests.unit.backends.support import Context, make_backend, make_request, replying, rewarding

KEY = "sk-the-rollouts-own-key"
BODY: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "6 * 7"}]}


def here() -> RolloutContext:
    """The context that user code sees."""
    ctx = get_rollout_context()
    assert ctx is not None
    return ctx


async def ask(ctx: RolloutContext | None = None, **more: Any) -> httpx.Response:
    """A model call as a workflow makes it, with a connection of its own."""
    ctx = ctx or here()
    headers = {"Authorization": f"Bearer {ctx.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=20, verify=False) as client:
        return await client.post(f"{ctx.chat_completions_url}/chat/completions", json={**BODY, **more})


class Runs:
    """A backend and what its rollouts have recorded."""

    def __init__(self, backend: LocalBackend, url: str) -> None:
        self.backend = backend
        self.url = url
        self.events: list[Event] = []

    @property
    def calls(self) -> list[ModelCalled]:
        return [event for event in self.events if isinstance(event, ModelCalled)]

    async def run(self, **fields: Any) -> ExecutionResult:
        """Execute one rollout as a runner does; the ambient context is the rollout's own."""
        ctx = RolloutContext(self.url, KEY, rollout_id="r", on_record=self.events.extend)
        with ctx:
            outcome = await self.backend.execute(make_request(**fields))
        return outcome.result


@contextlib.asynccontextmanager
async def recorded(
    url: str,
    run: Callable[[Context], Awaitable[Any]] = replying,
    grade: Callable[[GraderContext], Awaitable[Any]] | None = rewarding,
) -> AsyncIterator[Runs]:
    """The backend, shut down at the end."""
    backend = make_backend(run, grade, record_model_calls=True)
    try:
        yield Runs(backend, url)
    finally:
        await backend.shutdown()
