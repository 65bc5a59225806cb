"""What whoever watches over a rollout is told of its stages: its own time for each, whatever the request gives the
agent and the grader."""

from __future__ import annotations

import time
from pathlib import Path

from rollbook.backends.base import ExecutionRequest
from rollbook.sdk.context import RolloutContext
from rollbook.sdk.span import Stage
from rollbook.tasks.backend import TaskBackend
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from tests.contract.tasks.playing import NOWHERE, SAID, Acting, Agent, Bare


async def silent(agent: Agent) -> None:
    """Ends without a turn."""


async def told(folder: Path, **request: object) -> list[Stage]:
    """The named stages of one rollout, each step once."""
    stages: list[Stage | None] = []
    context = RolloutContext(NOWHERE, "key", rollout_id="r", on_stage=stages.append)
    backend = TaskBackend(task=Bare, harness=Acting(silent), runtime=lambda: SubprocessRuntime(parent=folder))
    with context:
        await backend.execute(ExecutionRequest(id="r", prompt=SAID, **request))  # type: ignore[arg-type]
    await backend.shutdown()
    assert stages[-1] is None
    return [stage for stage in stages if stage is not None and stage.name]


async def test_requests_budgets_are_the_agents_and_the_scorings_alone(tmp_path: Path) -> None:
    stages = await told(tmp_path, agent_timeout_sec=50.0, grader_timeout_sec=60.0)
    limited = {stage.name for stage in stages if stage.ends_at is not None}
    assert [*dict.fromkeys(stage.name for stage in stages)] == ["boot", "setup", "agent", "finalize", "scoring"]
    assert limited == {"agent", "scoring"}


async def test_each_stage_is_told_with_its_limit_and_what_its_failure_says(tmp_path: Path) -> None:
    timeouts = {"setup": 10, "agent": 20, "finalize": 30, "scoring": 40}
    before = time.monotonic()
    stages = await told(tmp_path, metadata={"task": {"timeouts": timeouts}})
    limited = {stage.name: stage for stage in stages if stage.ends_at is not None}
    assert limited.keys() == timeouts.keys()
    for name, limit_sec in timeouts.items():
        ends_at = limited[name].ends_at
        assert ends_at is not None
        assert before + limit_sec <= ends_at <= time.monotonic() + limit_sec
    assert {name: stage.late for name, stage in limited.items()} == {
        "setup": "setup: handing out the prompt ended the 10s that the set-up of task and harness share",
        "agent": "agent: the agent exceeded its budget of 20s",
        "finalize": "finalize: finalize exceeded its 30.0s deadline",
        "scoring": "scoring: scoring exceeded its 40.0s deadline",
    }
