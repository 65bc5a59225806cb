"""PROTOCOL, open: "then the interception endpoint and tool servers come up; then the execution network policy"."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from rollbook.tasks.data import NetworkPolicy, TaskData
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset, tool
from tests.contract.tasks.playing import Stage


class Notes(Toolset):
    """A tool."""

    @tool
    async def note(self, text: str) -> str:
        """Note something."""
        return text


class Equipped(Task[TaskData]):
    """A task with a tool."""

    toolsets = (Notes(),)


async def test_model_and_tools_can_be_reached_when_the_network_policy_comes(stage: Stage) -> None:
    answered: list[int] = []

    class Looks(SubprocessRuntime):
        async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
            [session] = stage.endpoint.sessions
            assert session.tools_url is not None
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            async with httpx.AsyncClient(trust_env=False) as client:
                answered.append((await client.post(session.tools_url, json=ping)).status_code)
            await super().allow(policy, keep=keep)

    rollout = stage.rollout(None, task=Equipped(), runtime=lambda: Looks(parent=stage.folder))
    assert await rollout.open(), rollout.trace.errors
    await rollout.close()
    assert answered == [200]
