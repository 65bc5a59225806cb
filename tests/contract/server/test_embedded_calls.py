"""A backend that records its model calls, in an embedded server."""

from __future__ import annotations

import threading
from typing import Any, cast

import httpx

from rollbook import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
    create_rollout_server,
    get_rollout_context,
)
from rollbook.interception.threaded import THREAD_NAME
from rollbook_client import RolloutClient
from tests.support.ledger import rows
from tests.support.model_server import ModelServer, Say


class Blocking(AgentWorkflow[AgentWorkflowConfig]):
    """Waits for the model without giving its loop back."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        rollout = get_rollout_context()
        assert rollout is not None
        body = {"model": "policy", "messages": ctx.prompt}
        url = f"{rollout.chat_completions_url}/chat/completions"
        answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {rollout.api_key}"}, timeout=20)
        return [*ctx.prompt, answer.json()["choices"][0]["message"]]


async def test_calls_are_recorded_and_the_endpoint_ends_with_the_server(database_url: str) -> None:
    backend = LocalBackend(workflow=Blocking, record_model_calls=True)
    app = create_rollout_server(
        backend=backend, database_url=database_url, configure_logging=False, result_wait_timeout_sec=0.5
    )
    async with ModelServer(default=Say("42")) as server:
        async with app.lifespan():
            transport = httpx.ASGITransport(cast(Any, app))
            async with (
                httpx.AsyncClient(transport=transport, base_url="http://api") as http,
                RolloutClient(url="http://api", http_client=http) as client,
            ):
                result = await client.run_rollout(
                    [{"role": "user", "content": "6 * 7"}], server.url, "r-1", llm_api_key="sk-own", grade=False
                )
            assert THREAD_NAME in {thread.name for thread in threading.enumerate()}
        (received,) = server.received
    assert result.sample is not None
    assert result.sample.messages[-1]["content"] == "42"
    assert received.headers["authorization"] == "Bearer sk-own"
    assert rows(database_url, "SELECT call, purpose, input_tokens, output_tokens FROM model_calls") == [
        (1, "policy", 10, 3)
    ]
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
