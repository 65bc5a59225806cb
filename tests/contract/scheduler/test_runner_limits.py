"""What limits a runner process gives itself before it runs anybody's code."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from rollbook.scheduler.child import Child, ChildEvents

FLOW = """
from rollbook import AgentWorkflow, AgentWorkflowConfig

class Flow(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx):
        return []
"""
LOW = 512


async def test_runner_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    ready = asyncio.Event()
    events = ChildEvents(
        lambda _slots: ready.set(),
        pytest.fail,
        lambda _key, _phase: None,
        lambda _records: None,
        lambda _report: None,
        lambda _child: None,
    )
    runner = Child(str(flow), events, max_concurrent=None, memory=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    try:
        await runner.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        async with asyncio.timeout(30):
            await ready.wait()
        assert runner.pid is not None
        assert resource.prlimit(runner.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        await runner.kill()
        runner.close()
