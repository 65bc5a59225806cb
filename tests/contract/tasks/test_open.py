"""PROTOCOL, open: what it brings up, in which order, and how it fails.

"start the runtime (or borrow one; a borrowed runtime already stopped raises to the caller and is never recorded as the
rollout's failure); no prompt and no user → a recorded `TaskError` before anything runs, open returns False. Task and
harness set-up hooks share one deadline; then the interception endpoint and tool servers come up; then the execution
network policy, which keeps the framework's own routes open; then the initial prompt passes the request interceptors,
changes recorded as `request_rewrites`. A set-up failure is recorded and open returns False; a cancellation aborts,
frees everything and re-raises." (Cancellations are in test_cancellation.py.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from rollbook.interception.messages import Request
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import NetworkPolicy, Resources, TaskData, Timeouts
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.hooks import intercept, reward
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset
from rollbook_client.events import MessageRewritten
from tests.contract.tasks.playing import PROMPT, Acting, Agent, Stage, WatchedEndpoint, ask_once, played, spend
from tests.support.model_server import ModelServer, Say


class Logged(Harness):
    """A harness that says in a list what is asked of it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def setup(self, runtime: Runtime, data: TaskData) -> None:
        self.log.append("harness set-up")

    async def run(self, exchange: Exchange) -> None:
        self.log.append("agent")

    async def clean_up(self) -> None:
        self.log.append("harness clean-up")


async def test_owned_runtime_is_started_by_open_and_stopped_by_close(stage: Stage) -> None:
    async with ModelServer() as model:
        rollout = stage.rollout(model)
        assert await rollout.open()
        [runtime] = stage.runtimes
        assert runtime.folder.is_dir()
        await rollout.close()
    assert runtime.stopped
    assert stage.left_behind == []


async def test_runtime_is_made_with_the_resources_that_the_task_asks_for(stage: Stage) -> None:
    class Limited(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            self.state.limit = (await runtime.run("ulimit -v")).stdout

        @reward
        def held(self) -> float:
            return float(self.state.limit == b"262144\n")

    data = TaskData(id="t-1", prompt=PROMPT, resources=Resources(memory_mb=256))
    runtime = partial(SubprocessRuntime, parent=stage.folder)
    trace = await played(stage.rollout(None, Acting(_nothing), task=Limited(), data=data, runtime=runtime))
    assert trace.errors == []
    assert trace.rewards == {"held": 1.0}


async def test_borrowed_runtime_is_neither_started_nor_stopped(stage: Stage) -> None:
    runtime = stage.runtime()
    await runtime.start()
    await runtime.write("notes.txt", b"the owner's")

    class Reads(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            self.state.notes = await runtime.read("notes.txt")

        @reward
        async def found(self, runtime: Runtime) -> float:
            return float(await runtime.read("notes.txt") == self.state.notes == b"the owner's")

    for _ in range(2):  # one after the other
        trace = await played(stage.rollout(None, Acting(_nothing), task=Reads(), runtime=runtime))
        assert trace.rewards == {"found": 1.0}
    assert not runtime.stopped
    await runtime.stop()


async def test_borrowed_runtime_already_stopped_raises_to_the_caller_and_is_not_recorded(stage: Stage) -> None:
    runtime = stage.runtime()
    await runtime.start()
    await runtime.stop()
    rollout = stage.rollout(None, runtime=runtime)
    with pytest.raises(RuntimeStoppedError, match="stopped by its owner"):
        await rollout.open()
    assert rollout.trace.errors == []
    assert rollout.trace.spans == []
    assert not rollout.failed


async def test_borrowed_runtime_stopped_during_set_up_raises_and_is_not_recorded(stage: Stage) -> None:
    lent = stage.runtime()
    await lent.start()

    class Unlucky(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            await lent.stop()
            await runtime.write("notes.txt", b"too late")

    rollout = stage.rollout(None, task=Unlucky(), runtime=lent)
    with pytest.raises(RuntimeStoppedError):
        await rollout.open()
    assert rollout.trace.errors == []
    with pytest.raises(RuntimeStoppedError):
        await rollout.close()
    assert [error.type for error in rollout.trace.errors] == ["RuntimeStoppedError"], "by close, for the trace"
    assert stage.left_behind == []


async def test_borrowed_runtime_that_was_never_started_raises_to_the_caller_and_is_not_recorded(stage: Stage) -> None:
    rollout = stage.rollout(None, runtime=(lent := stage.runtime()))
    with pytest.raises(RuntimeStoppedError, match=r"not started; await start\(\) first"):
        await rollout.open()
    assert rollout.trace.errors == []
    assert rollout.trace.spans == []
    assert not rollout.failed
    await lent.start()
    assert await rollout.open(), "nothing has been tried yet"
    await rollout.abort()
    await lent.stop()


@pytest.mark.parametrize("prompt", [None, []])
async def test_no_prompt_and_no_user_is_a_recorded_task_error_before_anything_runs(
    stage: Stage, prompt: list[MessageDict] | None
) -> None:
    log: list[str] = []

    class Silent(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            log.append("task set-up")

    rollout = stage.rollout(None, Logged(log), task=Silent(), data=TaskData(id="t-1", prompt=prompt))
    assert await rollout.open() is False
    assert [error.type for error in rollout.trace.errors] == ["TaskError"]
    assert "no prompt" in rollout.trace.errors[0].message
    assert log == []
    assert stage.runtimes == []
    trace = await rollout.close()
    assert not trace.ok
    assert log == []


async def test_no_prompt_is_no_error_where_a_user_opens_the_exchange(stage: Stage) -> None:
    async with ModelServer() as model:
        rollout = stage.rollout(model, data=TaskData(id="t-1"), user=True)
        assert await rollout.open()
        trace = await rollout.close()
    assert trace.ok


async def test_task_and_harness_set_up_share_one_deadline(stage: Stage) -> None:
    limit_sec = 0.4
    started: list[str] = []

    class Slow(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            started.append("task")
            spend(limit_sec * 0.6)

    class SlowToo(Logged):
        async def setup(self, runtime: Runtime, data: TaskData) -> None:
            started.append("harness")
            spend(limit_sec * 0.6)  # less than the deadline by itself

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(setup=limit_sec))
    rollout = stage.rollout(None, SlowToo([]), task=Slow(), data=data)
    assert await rollout.open() is False
    [error] = rollout.trace.errors
    assert (error.stage, error.type, error.category) == ("setup", "TimeoutError", "timeout")
    assert "0.4s that the set-up of task and harness share" in error.message
    await rollout.close()
    assert stage.left_behind == []


@pytest.mark.parametrize("late", ["task", "harness"])
async def test_set_up_that_never_ends_is_ended_by_the_deadline(stage: Stage, late: str) -> None:
    async def for_ever(who: str) -> None:
        if who == late:
            await asyncio.Event().wait()

    class Waits(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            await for_ever("task")

    class WaitsToo(Logged):
        async def setup(self, runtime: Runtime, data: TaskData) -> None:
            await for_ever("harness")

    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(setup=0.05))
    trace = await played(stage.rollout(None, WaitsToo([]), task=Waits(), data=data))
    assert [(error.stage, error.category) for error in trace.errors] == [("setup", "timeout")]
    assert f"the {late}'s set-up" in trace.errors[0].message


class Policed(SubprocessRuntime):
    """A runtime that says when which routes were asked for."""

    def __init__(self, parent: Path, log: list[str]) -> None:
        super().__init__(parent=parent)
        self.log = log
        self.kept: list[tuple[str, int]] = []

    async def start(self) -> None:
        await super().start()
        self.log.append("runtime")

    async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
        await super().allow(policy, keep=keep)
        self.kept += keep
        self.log.append("network policy")


async def test_open_brings_things_up_in_order_and_the_policy_keeps_the_endpoints_route(
    stage: Stage, endpoint: WatchedEndpoint
) -> None:
    log: list[str] = []
    made: list[Policed] = []

    class Ordered(Task[TaskData]):
        async def setup(self, data: TaskData, runtime: Runtime) -> None:
            log.append("task set-up")
            assert endpoint.sessions == []

        @intercept
        def first(self, request: Request) -> None:
            assert len(endpoint.sessions) == 1
            log.append("interceptor")

    def runtime() -> Runtime:
        made.append(Policed(stage.folder, log))
        return made[0]

    rollout = stage.rollout(None, Logged(log), task=Ordered(), runtime=runtime)
    assert await rollout.open()
    assert log == ["runtime", "task set-up", "harness set-up", "network policy", "interceptor"]
    assert made[0].kept == [("127.0.0.1", endpoint.port)]
    await rollout.close()


async def test_initial_prompt_passes_the_request_interceptors_and_changes_are_recorded(stage: Stage) -> None:
    class Polite(Task[TaskData]):
        @intercept
        def please(self, request: Request) -> Request:
            request.messages[-1]["content"] += " Please."
            return request

    started: list[list[MessageDict]] = []

    async def play(agent: Agent) -> None:
        started.append(list(agent.exchange.messages))
        await agent.ask()

    data = TaskData(id="t-1", prompt=PROMPT, system_prompt="Be brief.")
    async with ModelServer(default=Say()) as model:
        rollout = stage.rollout(model, Acting(play), task=Polite(), data=data)
        assert await rollout.open()
        assert model.received == []
        [rewrite] = rollout.trace.request_rewrites
        assert (rewrite.hook, rewrite.side, rewrite.call) == ("please", "request", None)
        assert rewrite.before == [{"role": "user", "content": PROMPT}]
        assert rewrite.after == [{"role": "user", "content": f"{PROMPT} Please."}]
        await rollout.step()
        sent = model.received[0].json["messages"]
    await rollout.close()
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{PROMPT} Please."}]
    assert started == [prompt]
    assert sent == prompt, "the prompt was intercepted twice"
    assert len(stage.tells(MessageRewritten)) == 1


async def test_interceptor_that_breaks_a_rule_on_the_prompt_is_a_set_up_failure(stage: Stage) -> None:
    class Rude(Task[TaskData]):
        @intercept
        def drops_all(self, request: Request) -> None:
            request.messages.clear()

    trace = await played(stage.rollout(None, task=Rude()))
    [error] = trace.errors
    assert (error.stage, error.type) == ("setup", "TaskError")
    assert "Rude.drops_all" in error.message
    assert not trace.ok


def _no_runtime() -> Runtime:
    raise OSError("no more folders")


class BadSetUp(Task[TaskData]):
    """Its set-up fails."""

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        raise ValueError("no numbers to sum")


class BadHarness(Logged):
    """Its set-up fails."""

    async def setup(self, runtime: Runtime, data: TaskData) -> None:
        raise OSError("the agent cannot be installed")


class Rewarded(Task[TaskData]):
    """Has a reward that must not be asked."""

    @reward
    def never(self) -> float:
        raise AssertionError("a rollout that did not open was scored")


async def test_runtime_that_cannot_be_made_is_a_boot_failure(stage: Stage) -> None:
    trace = await played(stage.rollout(None, task=Rewarded(), runtime=_no_runtime))
    assert [(error.stage, error.type, error.message) for error in trace.errors] == [
        ("boot", "OSError", "no more folders")
    ]
    assert trace.rewards == {}


async def test_runtime_that_does_not_start_is_a_boot_failure(stage: Stage) -> None:
    stage.folder.mkdir()
    stage.folder.chmod(0o777)
    trace = await played(stage.rollout(None, task=Rewarded()))
    assert [(error.stage, error.type) for error in trace.errors] == [("boot", "RuntimeUnavailableError")]
    assert trace.rewards == {}
    assert stage.left_behind == []


async def test_task_set_up_that_fails_is_recorded_and_the_harness_is_left_alone(stage: Stage) -> None:
    log: list[str] = []
    rollout = stage.rollout(None, Logged(log), task=BadSetUp())
    assert await rollout.open() is False
    [error] = rollout.trace.errors
    assert (error.stage, error.type, error.message) == ("setup", "ValueError", "no numbers to sum")
    assert error.category == "validation_error"
    assert await rollout.step() is False
    trace = await rollout.close()
    assert not trace.ok
    assert log == []
    assert stage.left_behind == []


async def test_harness_set_up_that_fails_is_recorded_and_cleaned_up_after(stage: Stage) -> None:
    log: list[str] = []
    trace = await played(stage.rollout(None, BadHarness(log)))
    assert [(error.stage, error.message) for error in trace.errors] == [("setup", "the agent cannot be installed")]
    assert log == ["harness clean-up"]
    assert stage.left_behind == []


async def test_url_that_is_none_is_a_set_up_failure(stage: Stage) -> None:
    rollout = stage.rollout(None)
    rollout._url = "no url"
    trace = await played(rollout)
    [error] = trace.errors
    assert error.stage == "setup"
    assert "chat_completions_url" in error.message
    assert stage.left_behind == []


async def test_network_policy_that_cannot_be_enforced_is_a_set_up_failure(stage: Stage) -> None:
    data = TaskData(id="t-1", prompt=PROMPT, network=NetworkPolicy(allow=("example.com",)))
    trace = await played(stage.rollout(None, data=data))
    assert [(error.stage, error.type) for error in trace.errors] == [("setup", "UnsupportedNetworkError")]
    assert stage.left_behind == []


async def test_tools_of_the_task_are_there_when_the_agent_starts(stage: Stage) -> None:
    async def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    class Armed(Task[TaskData]):
        toolsets = (Toolset(add),)

    offered: list[list[str]] = []

    async def play(agent: Agent) -> None:
        offered.append([tool["function"]["name"] for tool in agent.exchange.tools.definitions])
        offered.append([await agent.exchange.tools.call("add", '{"a": 2, "b": 3}')])

    trace = await played(stage.rollout(None, Acting(play), task=Armed()))
    assert trace.ok
    assert offered == [["add"], ["5"]]


async def test_rollout_is_opened_once(stage: Stage) -> None:
    rollout = stage.rollout(None, Acting(ask_once))
    assert await rollout.open()
    with pytest.raises(RuntimeError, match="make a new one"):
        await rollout.open()
    await rollout.close()


async def _nothing(agent: Agent) -> None:
    """An agent that makes no call."""
