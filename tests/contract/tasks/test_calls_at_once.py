"""PROTOCOL, limits and hooks, where a program makes several calls at once: none slips past what each would meet alone.

Hooks may wait, so others of the rollout's calls come between their question and its answer.
"""

from __future__ import annotations

import asyncio

import pytest

from rollbook.interception.messages import Request, Response
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import intercept, stop
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import SAID, WAIT_SEC, Acting, Agent, Got, Stage, played
from tests.support.model_server import Hang, ModelServer, Received, Say, Status


def asks(number: int) -> list[MessageDict]:
    """A conversation of its own."""
    return [*SAID, {"role": "user", "content": str(number)}]


async def at_once(agent: Agent, count: int) -> list[Got]:
    """As many calls, each with another conversation."""
    return await asyncio.gather(*(agent.call(asks(number)) for number in range(count)))


def numbered(received: Received) -> Say:
    return Say(f"answer {received.number}")


class Waits(Task[TaskData]):
    """Its hooks answer once as many calls are with them as there are in all."""

    calls = 5

    def new_state(self) -> asyncio.Barrier:
        return asyncio.Barrier(self.calls)


class WaitsInStop(Waits):
    @stop
    async def never(self, trace: Trace, state: asyncio.Barrier) -> bool:
        await state.wait()
        return False


class WaitsInRequestStop(Waits):
    @stop
    async def never(self, request: Request, state: asyncio.Barrier) -> bool:
        await state.wait()
        return False


class WaitsInInterceptor(Waits):
    @intercept
    async def look(self, request: Request, state: asyncio.Barrier) -> None:
        if len(request.messages) > 1:
            await state.wait()


@pytest.mark.parametrize("task", [WaitsInStop, WaitsInRequestStop, WaitsInInterceptor])
async def test_calls_whose_hooks_wait_do_not_pass_max_turns_together(stage: Stage, task: type[Waits]) -> None:
    got: list[Got] = []

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            got.extend(await at_once(agent, Waits.calls))

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=task(), limits=RolloutLimits(max_turns=1)))
        assert len(model.received) == 1, "the model saw a turn that is over the limit"
    assert trace.errors == []
    assert (trace.num_turns, trace.stop_condition) == (1, "max_turns")
    assert sorted(one.status for one in got) == [200, 400, 400, 400, 400]
    assert {one.error for one in got if one.status == 400} == {"rollout stopped: max_turns"}


async def test_turn_is_refused_where_another_reached_a_token_limit_while_its_hook_waited(stage: Stage) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    class Slow(Task[TaskData]):
        @stop
        async def never(self, request: Request) -> bool:
            if len(request.messages) > 1:
                asked.set()
                await answered.wait()
            return False

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            late = asyncio.ensure_future(agent.call(asks(1)))
            await asked.wait()
            assert (await agent.call(SAID)).status == 200
            answered.set()
            assert (await late).error == "rollout stopped: max_output_tokens"

    async with ModelServer(default=Say(usage={"prompt_tokens": 10, "completion_tokens": 5})) as model:
        limits = RolloutLimits(max_output_tokens=5)
        trace = await played(stage.rollout(model, Acting(play), task=Slow(), limits=limits))
        assert len(model.received) == 1
    assert trace.errors == []
    assert trace.stop_condition == "max_output_tokens"


async def test_last_turn_is_left_to_a_call_that_waits_while_another_that_fails_has_it(stage: Stage) -> None:
    """A turn that brought no answer was none: whoever waited for its end is served, and nothing was stopped."""
    released = asyncio.Event()
    statuses: list[int] = []

    async def fails_late(received: Received) -> Status:
        await released.wait()
        return Status(500)

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            first = asyncio.ensure_future(agent.call(asks(1)))
            await model.wait_for(1)
            second = asyncio.ensure_future(agent.call(asks(2)))
            await stage.until_waiting(2)
            released.set()
            statuses.extend([(await first).status, (await second).status])

    answers = [fails_late]
    async with ModelServer(default=lambda received: answers.pop()(received) if answers else Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(max_turns=1)))
    assert statuses == [500, 200]
    assert trace.errors == []
    assert (trace.num_turns, trace.stop_condition) == (1, None)


async def test_call_that_waits_for_the_last_turn_ends_with_the_rollout(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        first = asyncio.ensure_future(agent.call(asks(1)))
        await model.wait_for(1)
        second = asyncio.ensure_future(agent.call(asks(2)))
        await stage.until_waiting(2)
        waiting.set()
        await asyncio.gather(first, second)

    waiting = asyncio.Event()
    async with ModelServer(Hang()) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model, Acting(play), limits=RolloutLimits(max_turns=1))
        await rollout.open()
        step = asyncio.create_task(rollout.step())
        await waiting.wait()
        trace = await rollout.close()
        assert await step is False
        assert len(model.received) == 1
    assert [call.error.kind if call.error else None for call in trace.calls] == ["aborted"]
    assert trace.stop_condition is None
    assert stage.left_behind == []


async def test_call_that_waits_for_the_last_turn_is_refused_where_a_stop_ends_the_exchange(stage: Stage) -> None:
    gate = asyncio.Event()

    class Enough(Task[TaskData]):
        @stop
        def enough(self, request: Request) -> bool:
            return bool(request.messages[-1]["content"] == "enough")

        @stop
        def said_enough(self, response: Response) -> bool:
            return bool(response.message["content"] == "enough")

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            first = asyncio.ensure_future(agent.call(asks(1)))
            await model.wait_for(1)
            others = [asyncio.ensure_future(agent.call(asks(number))) for number in (2, 3)]
            await stage.until_waiting(3)
            gate.set()
            assert [(await call).error for call in (first, *others)] == ["rollout stopped: said_enough"] * 3

    async with ModelServer(Say("enough", gate=gate)) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Enough(), limits=RolloutLimits(max_turns=1)))
        assert len(model.received) == 1
    assert trace.errors == []
    assert (trace.num_turns, trace.stop_condition) == (1, "said_enough")


@pytest.mark.parametrize("count", [2, 5])
async def test_message_that_several_calls_bring_at_once_passes_the_interceptors_once(stage: Stage, count: int) -> None:
    """As of several samples of one prompt: another rewriting for each would tear what they go on from apart."""

    class Counts(Task[TaskData]):
        def new_state(self) -> list[str]:
            return []

        @intercept
        async def number(self, request: Request, state: list[str]) -> None:
            last = request.messages[-1]
            state.append(str(last["content"]))
            mine = len(state)
            for _ in range(50):
                await asyncio.sleep(0)
            last["content"] = f"{last['content']} #{mine}"

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            await asyncio.gather(*(agent.call(asks(7), seed=seed) for seed in range(count)))

    async with ModelServer(default=numbered) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        sent = [received.json["messages"][-1]["content"] for received in model.received]
    assert trace.errors == []
    assert sent == ["7 #2"] * count
    assert len(trace.request_rewrites) == 2, "the prompt and the one message"


async def test_interceptors_of_calls_with_other_messages_do_not_wait_for_each_other(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            assert [got.status for got in await at_once(agent, Waits.calls)] == [200] * Waits.calls

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=WaitsInInterceptor()))
    assert trace.errors == []
    assert trace.num_turns == Waits.calls


async def test_message_whose_interception_was_given_up_is_intercepted_for_the_next(stage: Stage) -> None:
    begun, both = asyncio.Event(), asyncio.Event()

    class Once(Task[TaskData]):
        def new_state(self) -> list[str]:
            return []

        @intercept
        async def slow(self, request: Request, state: list[str]) -> None:
            if len(request.messages) == 1:
                return
            state.append("begun")
            if len(state) == 1:
                begun.set()
                await both.wait()
                raise RuntimeError("too late")
            request.messages[-1]["content"] = "rewritten"

    async def play(agent: Agent) -> None:
        async with asyncio.timeout(WAIT_SEC):
            first = asyncio.ensure_future(agent.call(asks(1), seed=1))
            await begun.wait()
            second = asyncio.ensure_future(agent.call(asks(1), seed=2))
            await stage.until_waiting(2)
            both.set()
            assert [(await one).status for one in (first, second)] == [400, 400]

    async with ModelServer(default=Say()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Once()))
        assert not model.received
    assert "too late" in trace.errors[0].message
