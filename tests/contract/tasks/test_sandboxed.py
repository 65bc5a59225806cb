"""A rollout's life in every runtime that this machine has: the policy of the network keeps the model's route open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.hooks import reward
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.runtimes import BubblewrapRuntime
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, Stage, WatchedEndpoint, played
from tests.support.model_server import Die, ModelServer, Say
from tests.support.runtimes import executable, open_folder, running

# Only what every system has: a sandbox sees little of this machine.
ASK = (
    "exec 3<>/dev/tcp/$HOST/$PORT; "
    'printf "POST $PATH_/chat/completions HTTP/1.1\\r\\nHost: model\\r\\nConnection: close\\r\\n'
    "Authorization: Bearer $OPENAI_API_KEY\\r\\nContent-Type: application/json\\r\\n"
    'Content-Length: ${#BODY}\\r\\n\\r\\n$BODY" >&3; '
    "cat <&3 > answer"
)
SPLIT = (
    "URL=${OPENAI_BASE_URL#http://}; HOST_PORT=${URL%%/*}; PATH_=/${URL#*/}; "
    "HOST=${HOST_PORT%%:*}; PORT=${HOST_PORT##*:}; "
    'BODY="{\\"messages\\": $(cat $ROLLBOOK_MESSAGES)}"; '
)


class Answered(Task[TaskData]):
    """Is right where the program has the model's answer."""

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        await runtime.run("sleep 9999 >/dev/null 2>&1 & true")

    @reward
    async def right(self, runtime: Runtime, trace: Trace) -> float:
        return float(b"forty-two" in await runtime.read("answer") and trace.num_turns == 1)


@pytest.fixture
def parent() -> Iterator[Path]:
    with open_folder("rollouts") as path:
        yield path


@pytest.fixture
def stage(endpoint: WatchedEndpoint, parent: Path) -> Stage:
    return Stage(endpoint, parent)


async def test_program_without_network_reaches_the_model_and_nothing_is_left(
    stage: Stage, kind: type[OwnedRuntime], parent: Path
) -> None:
    harness = ProgramHarness(["bash", "-c", SPLIT + ASK])
    data = TaskData(id="t-1", prompt=PROMPT)
    async with ModelServer(Say("forty-two")) as model:
        rollout = stage.rollout(model, harness, task=Answered(), data=data, runtime=lambda: kind(parent=parent))
        trace = await played(rollout)
    assert trace.errors == []
    assert trace.rewards == {"right": 1.0}
    assert stage.left_behind == []
    assert running(str(parent)) == []


async def test_program_reaches_nothing_else_where_the_runtime_isolates(
    stage: Stage, kind: type[OwnedRuntime], parent: Path
) -> None:
    async with ModelServer(default=Say("from outside")) as other:
        port = other.url.rpartition(":")[2].partition("/")[0]
        harness = ProgramHarness(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached > answer"])
        rollout = stage.rollout(None, harness, runtime=lambda: kind(parent=parent))
        trace = await played(rollout)
    assert trace.ok is not issubclass(kind, BubblewrapRuntime)
    assert stage.left_behind == []


async def test_limits_and_causes_are_the_same_in_every_runtime(
    stage: Stage, kind: type[OwnedRuntime], parent: Path
) -> None:
    harness = ProgramHarness(["bash", "-c", SPLIT + ASK])
    async with ModelServer(default=Die()) as model:
        broken = await played(stage.rollout(model, harness, runtime=lambda: kind(parent=parent)))
    assert broken.errors[0].type == "ModelCallError"
    async with ModelServer(default=Say("42")) as model:
        limits = RolloutLimits(max_turns=0)
        stopped = await played(stage.rollout(model, harness, limits=limits, runtime=lambda: kind(parent=parent)))
    assert stopped.ok
    assert stopped.stop_condition == "max_turns"


async def test_interpreter_that_the_sandbox_does_not_show_is_named_with_what_to_show(
    stage: Stage, kind: type[OwnedRuntime], parent: Path
) -> None:
    agent = executable(parent / "venv/bin/agent", "#!/bin/sh\nexit 0\n")
    rollout = stage.rollout(None, ProgramHarness([str(agent), "--go"]), runtime=lambda: kind(parent=parent / "homes"))
    trace = await played(rollout)
    if issubclass(kind, BubblewrapRuntime):
        [error] = trace.errors
        assert error.message.startswith("the program ended with exit code 127, since this machine has ")
        assert f"BubblewrapRuntime(shown=[Path('{parent}/venv')])" in error.message
    else:
        assert trace.ok
