"""What a task has done until now is there for a poll, for the event stream and for SQL while it still runs."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rollbook.ledger.urls import SQLITE
from tests.support.databases import NewLedger
from tests.support.model_server import Hang, ModelServer, Say, in_thread
from tests.support.processes import LIMIT_SEC, Deployment, deployed, until

TASK = """
    from rollbook.tasks import ChatHarness, Request, SubprocessRuntime, Task, TaskBackend, Toolset, intercept, tool

    class Notes(Toolset):
        @tool
        async def look(self) -> str:
            '''Look.'''
            return "a secret"

    class Looks(Task):
        toolsets = (Notes(),)

        @intercept
        def hide(self, request: Request) -> None:
            last = request.messages[-1]
            if last["role"] == "tool":
                last["content"] = "[hidden]"

    def backend():
        return TaskBackend(task=Looks, harness=ChatHarness(), runtime=SubprocessRuntime)
"""

REPORT = """
    SELECT status, boot_seconds, setup_seconds, agent_seconds, model_calls, input_tokens, output_tokens
    FROM rollout_reports WHERE rollout_id = 'r-1'
"""


@pytest.fixture
def deployment(new_ledger: NewLedger, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(SQLITE, new_ledger, tmp_path) as deployment:
        yield deployment


async def _streamed(url: str, until_type: str) -> list[str]:
    """The types of the events that the stream tells, up to the first of that type."""
    types: list[str] = []
    async with (
        httpx.AsyncClient(timeout=LIMIT_SEC, verify=False) as client,
        client.stream("GET", f"{url}/events", headers={"Accept": "text/event-stream"}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                types.append(line.removeprefix("event: "))
                if types[-1] == until_type:
                    return types
    raise AssertionError(f"the stream ended without {until_type}: {types}")


async def test_stages_calls_and_rewrites_are_told_before_the_rollout_is_over(deployment: Deployment) -> None:
    entry = deployment.folder / "looking.py"
    entry.write_text(textwrap.dedent(TASK))
    with in_thread(ModelServer(Say(None, tool_calls=[("c1", "look", "{}")]), default=Hang())) as model:
        deployment.serve(entrypoint=Path(f"{entry}:backend"))
        await deployment.answering()
        async with deployment.client() as client:
            handle = await client.run_rollout_async([{"role": "user", "content": "Look."}], model.url, "r-1")
            assert await handle.wait_for_running() == "running"
            async with asyncio.timeout(LIMIT_SEC):
                types = await _streamed(deployment.url, "message_rewritten")
            assert types.count("stage_timed") == 2, "boot and set-up are over"
            assert types.count("model_called") == 1
            await until(lambda: deployment.number("SELECT count(*) FROM rewrites"), what="a rewrite")
            ((status, boot_sec, setup_sec, agent_sec, *used),) = deployment.rows(REPORT)
            assert status == "running"
            assert boot_sec >= 0
            assert setup_sec >= 0
            assert agent_sec is None, "the agent still works"
            assert used == [1, 10, 3]
            async with httpx.AsyncClient(verify=False) as http:
                polled = (await http.get(f"{deployment.url}/rollout/r-1/status")).json()
            assert (polled["status"], polled["phase"]) == ("running", "running")
            await client.cancel_rollout("r-1")
            assert (await handle).status == "cancelled"
    deployment.check_ledger()
