"""PROTOCOL, limits: "each call once". A branch that brought no usage of its own does not count another's again."""

from __future__ import annotations

from rollbook.interception.messages import Request
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import stop
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.task import Task
from tests.contract.tasks.playing import Acting, Agent, Stage, played
from tests.support.model_server import ModelServer, Say


async def test_call_without_usage_on_a_branch_of_its_own_adds_nothing_to_the_total(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        beginning = list(agent.messages)
        await agent.ask({"role": "user", "content": "left"})
        agent.messages = [*beginning, {"role": "user", "content": "right"}]
        assert (await agent.ask()).status == 200
        assert (await agent.ask({"role": "user", "content": "more"})).status == 200, "the first call counted twice"

    def used(read: int, written: int) -> Say:
        return Say(usage={"prompt_tokens": read, "completion_tokens": written})

    async with ModelServer(used(10, 5), used(20, 5), Say(usage=None), used(40, 5)) as model:
        trace = await played(stage.rollout(model, Acting(play), limits=RolloutLimits(max_total_tokens=26)))
    assert trace.errors == []
    assert len(trace.branches) == 2
    assert trace.num_total_tokens == 25 + 45


async def test_prompt_that_a_stop_committed_on_a_branch_of_its_own_adds_nothing_to_the_sums(stage: Stage) -> None:
    class Stops(Task[TaskData]):
        @stop
        def right(self, request: Request) -> bool:
            return bool(request.messages[-1]["content"] == "right")

    async def play(agent: Agent) -> None:
        await agent.ask()
        beginning = list(agent.messages)
        await agent.ask({"role": "user", "content": "left"})
        agent.messages = [*beginning, {"role": "user", "content": "right"}]
        assert (await agent.ask()).status == 400

    async with ModelServer(default=Say(usage={"prompt_tokens": 10, "completion_tokens": 5})) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Stops()))
    assert trace.stop_condition == "right"
    assert len(trace.branches) == 2
    assert (trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens) == (10, 10, 15)
