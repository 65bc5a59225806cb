"""Calls that the program itself gave up: no answer came, it hung up, and what it makes of that is its own affair.

PROTOCOL, step: "If a model call failed and no later one succeeded, that error is recorded, whether the harness exited
with an error or with 0." A model that does not answer in the time that a program gives it has failed it.
"""

from __future__ import annotations

import asyncio

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward, stop
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.task import Task
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import SAID, WAIT_SEC, Acting, Agent, Stage, WatchedEndpoint, ask_once, played
from tests.support.model_server import Hang, ModelServer, Say, Status


class Rewarded(Task[TaskData]):
    """Has a reward."""

    @reward
    def one(self) -> float:
        return 1.0


async def give_up(agent: Agent, model: ModelServer, *, number: int = 1, streamed: bool = False) -> None:
    """Call the model and hang up once the call has reached it; what it was does not matter to the agent."""
    slow = asyncio.ensure_future(agent.call(SAID, streamed=streamed))
    await model.wait_for(number)
    slow.cancel()
    await asyncio.wait([slow])


async def nobody_waits(stage: Stage) -> None:
    """Wait until the endpoint knows that the program has hung up."""
    await stage.until_waiting(0)


def blamed(trace: Trace) -> str:
    """The one error, which must be the model's."""
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("agent", "ModelCallError", "timeout")
    assert not trace.ok
    assert trace.rewards == {}
    return error.message


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("earlier", [0, 1])
async def test_call_that_the_program_hung_up_on_before_an_answer_is_the_cause(
    stage: Stage, earlier: int, streamed: bool
) -> None:
    async def play(agent: Agent) -> None:
        for _ in range(earlier):
            await agent.ask()
        await give_up(agent, model, number=earlier + 1, streamed=streamed)
        await nobody_waits(stage)

    async with ModelServer(*[Say()] * earlier, Hang()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded()))
    assert "the model had not answered when the program hung up, after " in blamed(trace)
    assert trace.num_turns == earlier


async def test_call_that_is_still_out_when_the_program_ends_is_the_cause(stage: Stage) -> None:
    left: list[asyncio.Future[object]] = []

    async def play(agent: Agent) -> None:
        left.append(asyncio.ensure_future(agent.call(SAID)))
        await model.wait_for(1)

    async with ModelServer(Hang()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded()))
    await asyncio.wait(left)
    left[0].exception()
    assert "the model had not answered when the program ended, after " in blamed(trace)


async def test_answer_that_nobody_was_there_for_any_more_does_not_count(stage: Stage) -> None:
    gate = asyncio.Event()

    async def play(agent: Agent) -> None:
        await give_up(agent, model)
        await nobody_waits(stage)
        gate.set()
        async with asyncio.timeout(WAIT_SEC):
            while not rollout.trace.calls:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0)

    async with ModelServer(Say("42", gate=gate)) as model:
        rollout = stage.rollout(model, Acting(play), task=Rewarded())
        trace = await played(rollout)
    assert "the model had not answered when the program hung up" in blamed(trace)
    assert [call.error for call in trace.calls] == [None]


@pytest.mark.parametrize("joins", [True, False], ids=["while it goes on", "after its end"])
async def test_program_that_comes_back_for_its_answer_has_not_given_it_up(stage: Stage, joins: bool) -> None:
    gate = asyncio.Event()

    async def play(agent: Agent) -> None:
        await give_up(agent, model)
        await nobody_waits(stage)
        again = asyncio.ensure_future(agent.call(SAID)) if joins else None
        if joins:
            await stage.until_waiting(1)
        gate.set()
        async with asyncio.timeout(WAIT_SEC):
            while not rollout.trace.calls:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0)
        assert (await (again or agent.call(SAID))).text == "42"

    async with ModelServer(Say("42", gate=gate)) as model:
        rollout = stage.rollout(model, Acting(play), task=Rewarded())
        trace = await played(rollout)
        assert len(model.received) == 1
    assert trace.ok
    assert trace.rewards == {"one": 1.0}


async def test_stream_that_the_program_cut_off_is_no_failure_where_the_model_went_on(stage: Stage) -> None:
    gate = asyncio.Event()

    async def play(agent: Agent) -> None:
        cut = asyncio.ensure_future(agent.call(SAID, streamed=True))
        await model.wait_for(1)
        async with asyncio.timeout(WAIT_SEC):
            while not rollout_has_part():  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        await nobody_waits(stage)
        gate.set()
        async with asyncio.timeout(WAIT_SEC):
            while not rollout.trace.calls:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0)

    def rollout_has_part() -> bool:
        return any(work.relay.size for work in stage.endpoint.sessions[-1]._running)

    async with ModelServer(Say("fourty two", gate_in=gate)) as model:
        rollout = stage.rollout(model, Acting(play), task=Rewarded())
        trace = await played(rollout)
    assert trace.ok
    assert trace.num_turns == 1


async def test_call_given_up_for_one_that_went_well_is_no_failure(stage: Stage) -> None:
    async def hedges(agent: Agent) -> None:
        slow = asyncio.ensure_future(agent.call(SAID))
        await model.wait_for(1)
        await agent.ask({"role": "user", "content": "quickly"})
        slow.cancel()
        await asyncio.wait([slow])
        await model.received[0].hung_up.wait()  # nobody came back for it
        for _ in range(10):  # it is recorded a turn or two later
            await asyncio.sleep(0)

    await stage.endpoint.close()
    stage.endpoint = WatchedEndpoint(orphan_sec=0.0)
    await stage.endpoint.start()
    async with ModelServer(Hang(), Say("42")) as model:
        rollout = stage.rollout(model, Acting(hedges), task=Rewarded())
        await rollout.open()
        assert await rollout.step()
        trace = await rollout.close()
    await stage.endpoint.close()
    assert trace.ok
    assert [call.error and call.error.kind for call in trace.calls] == [None, "aborted"]


async def test_call_given_up_before_one_that_went_well_is_no_failure(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await give_up(agent, model)
        await nobody_waits(stage)
        await agent.ask({"role": "user", "content": "once more"})

    async with ModelServer(Hang(), Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded()))
    assert trace.ok


async def test_call_given_up_after_all_that_went_well_is_a_failure(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        await give_up(agent, model, number=2)
        await nobody_waits(stage)

    async with ModelServer(Say("42"), Hang()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Rewarded()))
    assert "the model had not answered" in blamed(trace)


async def test_call_that_failed_after_the_program_hung_up_is_told_by_its_failure(stage: Stage) -> None:
    gate = asyncio.Event()

    async def late(_: object) -> Status:
        await gate.wait()
        return Status(503)

    async def play(agent: Agent) -> None:
        await give_up(agent, model)
        await nobody_waits(stage)
        gate.set()
        async with asyncio.timeout(WAIT_SEC):
            while not rollout.trace.calls:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0)

    async with ModelServer(default=late) as model:
        rollout = stage.rollout(model, Acting(play))
        trace = await played(rollout)
    [error] = trace.errors
    assert (error.type, error.category) == ("ModelCallError", "http_error")
    assert "HTTP 503" in error.message


async def test_what_was_on_its_way_when_a_stop_came_is_no_failure(stage: Stage) -> None:
    class Stopping(Rewarded):
        @stop
        def second(self, trace: Trace) -> bool:
            return bool(stage.endpoint.sessions) and len(model.received) == 1

    async def play(agent: Agent) -> None:
        slow = asyncio.ensure_future(agent.call(SAID))
        await model.wait_for(1)
        assert (await agent.ask({"role": "user", "content": "and this?"})).status == 400
        slow.cancel()
        await asyncio.wait([slow])
        await nobody_waits(stage)

    async with ModelServer(Hang()) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Stopping()))
    assert trace.stop_condition == "second"
    assert trace.errors == []
    assert trace.ok


async def test_call_given_up_in_an_earlier_segment_ends_the_exchange(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        await give_up(agent, model, number=2)
        await nobody_waits(stage)

    async with ModelServer(Say(), Hang()) as model:
        rollout = stage.rollout(model, Acting(play, ask_once), limits=RolloutLimits(max_turns=5))
        assert await rollout.open()
        assert await rollout.step() is False
        assert "the model had not answered" in blamed(await rollout.close())
