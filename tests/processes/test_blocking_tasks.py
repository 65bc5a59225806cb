"""Tasks whose own code blocks the runner, in a real deployment: the task's timeouts hold, the others go on elsewhere,
and what the killed runner leaves is removed."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger.urls import SQLITE
from rollbook.tasks.runtimes.leftovers import HOME_VARIABLE, processes_where
from tests.support.databases import NewLedger
from tests.support.processes import CHAT_URL, Deployment, deployed

TASK = """
    import time

    from rollbook.tasks import ProgramHarness, SubprocessRuntime, Task, TaskBackend, reward

    class Blocks(Task):
        async def act(self, stage, data, runtime):
            if data.metadata["in"] == stage:
                # A daemon that no signal to the runner's group reaches, as servers of an agent may be.
                await runtime.run("setsid sleep 9991 >/dev/null 2>&1 </dev/null &")
                time.sleep(3600)

        async def setup(self, data, runtime):
            await self.act("setup", data, runtime)
            if gate := data.metadata.get("gate"):
                await runtime.run(f"while ! test -e {gate}; do sleep 0.05; done")

        @reward
        async def right(self, data, runtime) -> float:
            await self.act("scoring", data, runtime)
            return 1.0

    def backend():
        return TaskBackend(task=Blocks, harness=ProgramHarness(["true"]), runtime=SubprocessRuntime)
"""

EXPECTED = {
    "setup": "setup: the task's set-up ended the 1s that the set-up of task and harness share: it blocked its runner's",
    "scoring": "scoring: scoring exceeded its 1.0s deadline: it blocked its runner's event loop in ",
}


@pytest.fixture
def deployment(new_ledger: NewLedger, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(SQLITE, new_ledger, tmp_path, TMPDIR=str(tmp_path)) as deployment:
        yield deployment
        for pid in _daemons(tmp_path):
            os.kill(pid, signal.SIGKILL)


async def test_task_that_blocks_ends_by_its_own_timeout_and_leaves_nothing(deployment: Deployment) -> None:
    entry = deployment.folder / "blocking.py"
    entry.write_text(textwrap.dedent(TASK))
    gate = deployment.folder / "gate"
    homes = deployment.folder / f"rollbook-runtimes-{os.geteuid()}"
    deployment.api()
    scheduler = deployment.scheduler(entrypoint=f"{entry}:backend", stall_after_sec=1.0)
    await deployment.answering()
    said = [{"role": "user", "content": "Do nothing."}]
    async with deployment.client() as client:
        waits = {"in": "none", "gate": str(gate)}
        bystander = await client.run_rollout_async(said, CHAT_URL, "bystander", metadata=waits)
        await bystander.wait_for_running()
        blocking = {}
        for stage in EXPECTED:
            row = {"in": stage, "task": {"timeouts": {stage: 1}}}
            blocking[stage] = await client.run_rollout_async(said, CHAT_URL, stage, metadata=row, agent_timeout_sec=60)
        for stage, handle in blocking.items():
            ended = await handle
            message = ended.err_message or ""
            assert (ended.status, ended.err_category) == ("failure", "timeout"), message
            assert message.startswith(EXPECTED[stage]), message
            assert f"{entry}, line" in message
        gate.touch()
        assert (await bystander).status == "success"
    for stage in EXPECTED:
        outcomes = deployment.rows("SELECT outcome FROM attempts WHERE rollout_id = ? AND outcome <> 'released'", stage)
        assert outcomes == [("completed",)], stage
        spans = "SELECT count(*) FROM stage_spans s JOIN rollouts r ON r.number = s.number WHERE r.rollout_id = ?"
        assert deployment.number(f"{spans} AND s.stage = '{stage}'", stage) == 1
    await scheduler.stop()
    assert list(homes.iterdir()) == []
    assert _daemons(deployment.folder) == []
    deployment.check_ledger()


def _daemons(folder: Path) -> list[int]:
    """Of the runtimes that are made in this folder."""
    mark = os.fsencode(f"{HOME_VARIABLE}={folder}/")
    return list(processes_where(lambda process: mark in (process / "environ").read_bytes()))
