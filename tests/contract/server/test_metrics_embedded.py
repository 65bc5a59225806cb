"""An embedded server tells metrics like any other: its scheduler's through the ledger, its own loop's by itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollbook import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, LocalBackend, create_rollout_server
from rollbook.metrics import looplag
from rollbook_client import RolloutClient
from tests.contract.server.support import LIMIT_SEC, admission_body


class Echo(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        return ctx.prompt


async def told(http: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """The values by their names and statuses."""
    return {
        (sample.name, sample.labels.get("status", "")): sample.value
        for family in text_string_to_metric_families((await http.get("/metrics")).text)
        for sample in family.samples
        if sample.labels.get("queue", "q") == "q"
    }


async def test_embedded_server_tells_metrics(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looplag, "LAG_SEC", 0.01)
    app = create_rollout_server(
        backend=LocalBackend(workflow=Echo), database_url=database_url, configure_logging=False, queue="q"
    )
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, app)), base_url="http://api") as http,
        RolloutClient(url="http://api", http_client=http) as client,
        asyncio.timeout(LIMIT_SEC),
    ):
        body = admission_body(grade=False)
        result = await client.run_rollout(**body)
        found = await told(http)
        while not found["rollbook_api_loop_lag_seconds_count", ""]:  # its loop measures it in the background
            await asyncio.sleep(looplag.LAG_SEC)
            found = await told(http)
    assert result.status == "success"
    assert found["rollbook_rollouts_finished_total", "success"] == 1
    assert (found["rollbook_schedulers", ""], found["rollbook_apis", ""]) == (1, 1)
    assert found["rollbook_api_wake_seconds_count", ""] > 0
