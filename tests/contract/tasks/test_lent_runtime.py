"""Several rollouts that are open at the same time in one borrowed runtime: what is each one's own, what they share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rollbook.tasks.data import NetworkPolicy, TaskData
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.borrowed import borrowed
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset, tool
from tests.contract.tasks.playing import Acting, Agent, Stage, ask_once
from tests.support.model_server import ModelServer, Say
from tests.support.runtimes import RUNTIMES, open_folder

ALL = NetworkPolicy(allow=("*",))
BOTH_WRITTEN = """
touch ready-$ROLLBOOK_PROMPT
until [ -e ready-one ] && [ -e ready-other ]; do sleep 0.01; done
cat "$ROLLBOOK_MESSAGES" "$ROLLBOOK_PROMPT_FILE"; echo; cat "$ROLLBOOK_MCP_CONFIG"; echo; echo "$ROLLBOOK_TOOLS_URL"
"""
"""Reads its files when both programs have been given theirs."""


class Noted(Task[TaskData]):
    """Has a tool, so that programs are given a file that names it."""

    @staticmethod
    def _tools() -> Toolset:
        @tool
        async def note() -> str:
            """Note something."""
            return "noted"

        return Toolset(note)

    toolsets = (_tools(),)


@pytest.fixture
def parent() -> Iterator[Path]:
    with open_folder("lent") as path:
        yield path


@pytest.fixture(params=RUNTIMES, ids=lambda kind: kind.__name__)
async def lent(request: pytest.FixtureRequest, parent: Path) -> AsyncIterator[OwnedRuntime]:
    kind: type[OwnedRuntime] = request.param
    runtime = kind(parent=parent)
    await runtime.start()
    yield runtime
    assert not runtime.stopped
    await runtime.stop()


def asks(name: str, policy: NetworkPolicy | None = None) -> TaskData:
    """A task of that name, which is its prompt too."""
    return TaskData(id=name, prompt=name, network=policy or NetworkPolicy())


async def opened(*rollouts: Rollout) -> None:
    """All of them, side by side."""
    assert await asyncio.gather(*(rollout.open() for rollout in rollouts)) == [True] * len(rollouts)


async def test_programs_that_run_at_once_have_files_of_their_own(stage: Stage, lent: OwnedRuntime) -> None:
    rollouts = [
        stage.rollout(None, ProgramHarness(BOTH_WRITTEN), task=Noted(), data=asks(name), runtime=borrowed(lent))
        for name in ("one", "other")
    ]
    await opened(*rollouts)
    await asyncio.gather(*(rollout.step() for rollout in rollouts))
    urls: set[str] = set()
    for rollout in rollouts:
        said = rollout.data.prompt
        messages, config, url = rollout.trace.info["program"]["stdout"].splitlines()
        assert messages == json.dumps([{"role": "user", "content": said}]) + str(said)
        assert json.loads(config)["mcpServers"]["rollbook"]["url"] == url
        urls.add(url)
        assert (await rollout.close()).ok
    assert len(urls) == 1, "their keys are taken out of what is kept, which leaves the same"


async def test_rollout_that_asks_for_another_network_policy_is_refused_while_one_is_open(
    stage: Stage, lent: OwnedRuntime
) -> None:
    log: list[str] = []

    class Logged(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            log.append(data.id)

    async with ModelServer(default=Say()) as model:
        first = stage.rollout(model, task=Logged(), data=asks("first"), runtime=lent)
        await opened(first)
        second = stage.rollout(model, task=Logged(), data=asks("second", ALL), runtime=borrowed(lent))
        assert await second.open() is False
        [error] = second.trace.errors
        assert (error.stage, error.type, error.category) == ("setup", "UnsupportedNetworkError", "validation_error")
        assert "has the network policy allow=[], deny=[], and this one asks for allow=['*'], deny=[]" in error.message
        assert "give each a runtime of its own, or open this one when that is closed" in error.message
        assert await first.step()
        assert (await first.close()).ok
        await second.close()
        third = stage.rollout(model, task=Logged(), data=asks("third", ALL), runtime=lent)
        await opened(third)
        assert await third.step()
        assert (await third.close()).ok
    assert log == ["first", "third"]


@pytest.mark.parametrize("policy", [NetworkPolicy(), ALL], ids=["none", "all"])
@pytest.mark.parametrize("ends", ["close", "abort"])
async def test_rollouts_with_the_same_policy_share_the_runtime_and_end_one_by_one(
    stage: Stage, lent: OwnedRuntime, policy: NetworkPolicy, ends: str
) -> None:
    async with ModelServer(default=Say()) as model:
        rollouts = [stage.rollout(model, data=asks(name, policy), runtime=lent) for name in ("one", "two", "three")]
        await opened(*rollouts)
        for rollout in rollouts:
            assert await rollout.step()
            await (rollout.close() if ends == "close" else rollout.abort())
            other = stage.rollout(model, data=asks("other", NetworkPolicy() if policy == ALL else ALL), runtime=lent)
            assert await other.open() is (rollout is rollouts[-1]), "the last one has gone"
            await other.close()


async def test_program_of_a_rollout_keeps_its_network_while_others_come_and_go(
    stage: Stage, lent: OwnedRuntime
) -> None:
    seen: list[bytes] = []

    async def looks(agent: Agent) -> None:
        seen.append((await agent.exchange.runtime.run("cut -d: -f1 /proc/self/net/dev")).stdout)
        await agent.ask()

    async with ModelServer(default=Say()) as model:
        one = stage.rollout(model, Acting(looks), data=asks("one"), runtime=lent)
        await opened(one)
        assert await one.step()
        other = stage.rollout(model, Acting(ask_once), data=asks("other", ALL), runtime=lent)
        await other.open()
        assert await one.step([{"role": "user", "content": "and now?"}])
        await one.close()
        await other.close()
    assert len(seen) == 2
    assert seen[0] == seen[1]
