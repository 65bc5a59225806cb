"""Faults that are nobody's but the machine's or Rollbook's own: named so, and never as if the agent were bad."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbook.backends.base import ExecutionRequest
from rollbook.interception import server
from rollbook.interception.messages import Request
from rollbook.interception.upstream import Answer, Upstream
from rollbook.sdk.context import RolloutContext
from rollbook.tasks.backend import TaskBackend
from rollbook.tasks.data import NetworkPolicy, TaskData, Timeouts
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.hooks import reward, stop
from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeFailedError, RuntimeUnavailableError, SubprocessRuntime
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from rollbook_client.statuses import RolloutErrorCategory
from tests.contract.tasks.playing import NOWHERE, PROMPT, SAID, Acting, Agent, Bare, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say

DEEP = 990
"""Levels of a message that nothing can copy which goes down one call for each."""


def told(trace: Trace) -> list[tuple[str, str, str]]:
    """Stage, type and category of each error."""
    return [(error.stage, error.type, error.category) for error in trace.errors]


@pytest.fixture
def without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no sandboxes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


class BrokenUpstream(Upstream):
    """The endpoint's way to the model, with a mistake of its author's in it, the first time at least."""

    def __init__(self, *, times: int) -> None:
        super().__init__()
        self._times = times

    @asynccontextmanager
    async def send(self, *arguments: Any, **options: Any) -> AsyncIterator[Answer]:
        """Fail as code does that nobody thought through."""
        if self._times:
            self._times -= 1
            raise KeyError("connections")
        async with super().send(*arguments, **options) as answer:
            yield answer


@pytest.mark.usefixtures("without_bubblewrap")
async def test_machine_without_bubblewrap_is_an_internal_error_that_names_the_package() -> None:
    backend = TaskBackend(task=Bare, harness=ProgramHarness(["true"]), runtime=BubblewrapRuntime)
    with RolloutContext(NOWHERE, "key", rollout_id="r-1"):
        outcome = await backend.execute(ExecutionRequest(id="r-1", prompt=SAID))
    assert outcome.result.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert "apt-get install bubblewrap" in (outcome.result.err_message or "")


@pytest.mark.usefixtures("without_bubblewrap")
@pytest.mark.parametrize("runtime", [BubblewrapRuntime, lambda: BubblewrapRuntime(max_processes=64)])
async def test_backend_whose_sandboxes_this_machine_cannot_make_is_found_out_before_any_rollout(runtime: Any) -> None:
    backend = TaskBackend(task=Bare, harness=ProgramHarness(["true"]), runtime=runtime)
    with pytest.raises(RuntimeUnavailableError, match="apt-get install bubblewrap"):
        await backend.check()


async def test_backend_whose_runtimes_need_nothing_is_well(tmp_path: Path) -> None:
    home = tmp_path / "runtimes"
    backend = TaskBackend(task=Bare, harness=ProgramHarness(["true"]), runtime=lambda: SubprocessRuntime(parent=home))
    await backend.check()
    assert not home.exists()


async def test_function_that_makes_no_runtime_is_told_so() -> None:
    backend = TaskBackend(task=Bare, harness=ProgramHarness(["true"]), runtime=lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="have it return a Runtime"):
        await backend.check()


async def test_runtime_whose_making_fails_for_the_machines_sake_is_an_internal_error(stage: Stage) -> None:
    def full() -> Runtime:
        raise OSError(28, "No space left on device")

    assert told(await played(stage.rollout(None, runtime=full))) == [("boot", "OSError", "internal_error")]


async def test_factory_of_runtimes_with_wrong_arguments_stays_a_mistake_of_its_author(stage: Stage) -> None:
    def wrong() -> Runtime:
        return SubprocessRuntime(output_limit_bytes=-1)

    trace = await played(stage.rollout(None, runtime=wrong))
    assert told(trace) == [("boot", "ValueError", "validation_error")]
    assert trace.errors[0].message.startswith("output_limit_bytes must be a whole number from 0 on; got -1")


async def test_runtime_that_breaks_down_while_the_program_runs_is_an_internal_error(stage: Stage) -> None:
    async def broken(_agent: Agent) -> None:
        raise RuntimeFailedError("the sandbox is gone")

    trace = await played(stage.rollout(None, Acting(broken)))
    assert told(trace) == [("agent", "RuntimeFailedError", "internal_error")]


async def test_runtime_that_breaks_down_under_a_reward_is_an_internal_error(stage: Stage) -> None:
    class Broken(Task[TaskData]):
        @reward
        def lost(self) -> float:
            raise RuntimeFailedError("the sandbox is gone")

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Broken()))
    assert told(trace) == [("scoring", "RuntimeFailedError", "internal_error")]


async def test_network_policy_that_a_runtime_cannot_enforce_is_the_tasks_mistake(stage: Stage) -> None:
    data = TaskData(id="t-1", prompt=PROMPT, network=NetworkPolicy(allow=("example.com",)))
    assert told(await played(stage.rollout(None, data=data))) == [
        ("setup", "UnsupportedNetworkError", "validation_error")
    ]


async def test_machine_without_a_free_port_for_the_endpoint_is_an_internal_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object, **__: object) -> socket.socket:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(f"{server.__name__}.socket.socket", taken)
    rollout = stage.rollout(None)
    rollout._endpoint = None  # the process's own, which is started for the first rollout
    trace = await played(rollout)
    assert told(trace) == [("setup", "MachineError", "internal_error")]
    assert "found no port on this machine (Address already in use)" in trace.errors[0].message


async def test_fault_of_the_endpoint_is_ours_and_is_told_to_the_program_and_in_the_trace(stage: Stage) -> None:
    async def gives_up(agent: Agent) -> None:
        got = await agent.ask()
        assert got.status == 500
        raise SystemExit(got.error)

    stage.endpoint._upstream = BrokenUpstream(times=1)
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(gives_up)))
    assert told(trace)[0] == ("agent", "ModelCallError", "internal_error")
    assert trace.errors[0].message.startswith("Rollbook itself failed while it served a model call")
    assert "KeyError('connections')" in trace.errors[0].message
    assert [call.error.kind for call in trace.calls if call.error is not None] == ["internal"]
    assert trace.errors[0].message in (trace.errors[1].message)


async def test_fault_of_the_endpoint_that_a_later_call_made_good_is_none(stage: Stage) -> None:
    async def again(agent: Agent) -> None:
        assert (await agent.ask()).status == 500
        assert (await agent.ask()).status == 200

    stage.endpoint._upstream = BrokenUpstream(times=1)
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(again)))
    assert trace.ok
    assert trace.num_turns == 1


async def test_call_that_broke_in_the_endpoint_is_in_flight_no_more(stage: Stage) -> None:
    async def slow(agent: Agent) -> None:
        await agent.ask()
        await asyncio.Event().wait()

    stage.endpoint._upstream = BrokenUpstream(times=1)
    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=0.3))
    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(slow), data=data))
    assert "had not answered" not in trace.errors[0].message
    assert "its last model call failed: Rollbook itself failed" in trace.errors[0].message


async def test_fault_in_what_decides_about_a_call_is_ours(stage: Stage) -> None:
    class Watching(Task[TaskData]):
        @stop
        def never(self, request: Request) -> bool:
            return False

    deep: list[Any] = []
    for _ in range(DEEP):
        deep = [deep]

    async def asks(agent: Agent) -> None:
        got = await agent.ask({"role": "user", "content": deep})
        raise RuntimeError(got.error)

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(asks), task=Watching()))
    assert told(trace)[0] == ("agent", "ModelCallError", "internal_error")
    assert trace.errors[0].message.startswith("Rollbook itself failed")
    assert "RecursionError" in trace.errors[0].message


async def test_program_that_fails_without_a_fault_of_ours_is_still_the_agents(stage: Stage) -> None:
    async def fails(agent: Agent) -> None:
        await ask_once(agent)
        raise RuntimeError("it lost its way")

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(fails)))
    assert told(trace) == [("agent", "RuntimeError", "agent_error")]
