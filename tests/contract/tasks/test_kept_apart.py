"""What must not get into a trace: calls that never began, keys that a server repeats, messages that a user changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from rollbook.interception.messages import Request
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import intercept
from rollbook.tasks.limits import RolloutLimits
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.storage import dumps
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import WAIT_SEC, Acting, Agent, Stage, ask_once, played
from tests.support.model_server import ModelServer, Raw, Say

KEY = "sk-of-the-trainer-0123456789"


async def test_call_whose_interceptor_still_waits_when_the_rollout_closes_was_none(stage: Stage) -> None:
    waits = asyncio.Event()
    left: list[asyncio.Future[object]] = []

    class Waits(Task[TaskData]):
        @intercept
        async def wait(self, request: Request) -> None:
            if request.messages[-1]["content"] == "late":
                waits.set()
                await asyncio.Event().wait()

    async def leaves_a_call(agent: Agent) -> None:
        await agent.ask()
        left.append(asyncio.ensure_future(agent.call([{"role": "user", "content": "late"}])))
        await asyncio.wait_for(waits.wait(), WAIT_SEC)

    async with ModelServer(default=Say()) as model:
        trace = await played(
            stage.rollout(model, Acting(leaves_a_call), task=Waits(), limits=RolloutLimits(max_turns=9))
        )
        assert len(model.received) == 1
        await asyncio.gather(*left, return_exceptions=True)
    assert len(trace.calls) == 1
    assert trace.ok


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_key_that_a_server_repeats_with_200_is_not_in_the_trace(stage: Stage, streamed: bool) -> None:
    body = json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()
    reply = Raw([b"data: " + body + b"\n\n"], content_type="text/event-stream") if streamed else Raw([body])

    async def careless(agent: Agent) -> None:
        await agent.ask(streamed=streamed)

    async with ModelServer(default=reply) as model:
        trace = await played(stage.rollout(model, Acting(careless), api_key=KEY))
        assert {request.headers["authorization"] for request in model.received} == {f"Bearer {KEY}"}
    assert trace.errors[0].type == "ModelCallError"
    assert "bad key [llm_api_key]" in trace.errors[0].message
    assert KEY not in dumps(trace).decode()


async def test_message_that_a_user_says_again_with_another_text_changes_none_that_was_said(stage: Stage) -> None:
    class Looks(Task[TaskData]):
        @intercept
        def look(self, request: Request) -> None:
            return None

    said: MessageDict = {"role": "user", "content": "first"}
    async with ModelServer(default=Say("ok")) as model:
        rollout = stage.rollout(model, Acting(ask_once), task=Looks())
        assert await rollout.open()
        assert await rollout.step([said])
        said["content"] = "second"
        assert await rollout.step([said])
        trace = await rollout.close()
        sent = [message["content"] for message in model.received[1].json["messages"]]
    assert sent[1:] == ["first", "ok", "second"]
    assert trace.ok
    assert len(trace.branches) == 1


async def test_interceptor_that_changes_an_earlier_message_at_a_users_turn_breaks_a_rule(stage: Stage) -> None:
    class Louder(Task[TaskData]):
        @intercept
        def shout(self, request: Request) -> None:
            for message in request.messages:
                if message["role"] == "user":
                    message["content"] += "!"

    async with ModelServer(default=Say("ok")) as model:
        rollout = stage.rollout(model, Acting(ask_once), task=Louder())
        assert await rollout.open()
        assert await rollout.step()
        assert await rollout.step([{"role": "user", "content": "And?"}]) is False
        trace = await rollout.close()
        assert len(model.received) == 1, "what was said before was said otherwise"
    [error] = trace.errors
    assert "@intercept Louder.shout changed message 0, which an earlier turn has seen" in error.message


async def test_what_a_harness_sets_on_itself_stays_with_its_rollout(stage: Stage) -> None:
    class Keeps(Acting):
        notes: tuple[str, ...] = ()

        async def setup(self, runtime: Runtime, data: TaskData) -> None:
            self.notes = (*self.notes, data.id)

        def measurements(self) -> Mapping[str, float]:
            return {f"of {name}": 1.0 for name in self.notes}

    harness = Keeps(ask_once)
    async with ModelServer(default=Say()) as model:
        rollouts = [stage.rollout(model, harness, data=TaskData(id=name, prompt="Go.")) for name in ("one", "other")]
        for rollout in rollouts:
            assert await rollout.open()
        traces = [await played_on(rollout) for rollout in rollouts]
    assert [trace.metrics for trace in traces] == [{"of one": 1.0}, {"of other": 1.0}]
    assert harness.notes == ()


async def played_on(rollout: Rollout) -> Trace:
    """One step of an open rollout, then close."""
    assert await rollout.step()
    return await rollout.close()
