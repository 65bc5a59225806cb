"""PROTOCOL, hooks: a message passes the interceptors once, whatever program sends it again, and in whatever form.

A program keeps its own history. It sends a message that was rewritten again as it was before; it may send it at
another place, because it cut its history, or after a call that failed.
"""

from __future__ import annotations

import pytest

from rollbook.interception.messages import Request
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import intercept
from rollbook.tasks.task import Task
from tests.contract.tasks.playing import PROMPT, SAID, Acting, Agent, Stage, played
from tests.support.model_server import ModelServer, Say, Status


class Counts(Task[TaskData]):
    """Its interceptor gives each new text the number of times it was asked so far: twice would show."""

    def new_state(self) -> list[str]:
        return []

    @intercept
    def number(self, request: Request, state: list[str]) -> None:
        last = request.messages[-1]
        state.append(str(last["content"]))
        last["content"] = f"{last['content']} #{len(state)}"


def contents(messages: list[MessageDict]) -> list[str | None]:
    """The texts of a conversation."""
    return [message.get("content") for message in messages]


def result(number: int) -> MessageDict:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": f"result {number}"}


def wants(number: int) -> Say:
    """An answer that calls a tool."""
    return Say(None, tool_calls=[(f"call-{number}", "look", "{}")])


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_rewritten_tool_message_that_is_sent_again_in_its_old_form_stays_rewritten(
    stage: Stage, streamed: bool
) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        await agent.ask(result(1))
        await agent.ask(result(2), streamed=streamed)

    async with ModelServer(wants(1), wants(2), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        assert trace.errors == []
        sent = contents(model.received[2].json["messages"])
    assert sent == [f"{PROMPT} #1", None, "result 1 #2", None, "result 2 #3"]
    assert [rewrite.after[0]["content"] for rewrite in trace.request_rewrites] == [
        f"{PROMPT} #1",
        "result 1 #2",
        "result 2 #3",
    ]
    assert len(trace.branches) == 1, "an old form made a branch"


async def test_rewritten_message_stays_rewritten_where_the_program_cut_its_history(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        await agent.ask(result(1))
        await agent.ask(result(2))
        del agent.messages[1:3]  # the first call and its result
        await agent.ask({"role": "user", "content": "and now?"})

    async with ModelServer(wants(1), wants(2), wants(3), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        assert trace.errors == []
        sent = contents(model.received[3].json["messages"])
    assert sent == [f"{PROMPT} #1", None, "result 2 #3", None, "and now? #4"]
    assert len(trace.request_rewrites) == 4


async def test_message_whose_call_failed_is_not_intercepted_again_by_its_retry(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        while (await agent.ask(*([] if agent.messages[-1] == result(1) else [result(1)]))).status == 429:
            pass

    async with ModelServer(wants(1), Status(429), Status(429), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        assert trace.errors == []
        assert [contents(received.json["messages"])[-1] for received in model.received[1:]] == ["result 1 #2"] * 3
    assert len(trace.request_rewrites) == 2


async def test_message_that_was_not_rewritten_is_shown_once_as_new(stage: Stage) -> None:
    shown: list[int] = []

    class Watches(Task[TaskData]):
        @intercept
        def watch(self, request: Request) -> None:
            shown.append(len(request.messages))

    async def play(agent: Agent) -> None:
        await agent.ask()
        assert (await agent.ask(result(1))).status == 500
        await agent.ask()  # the same once more

    async with ModelServer(wants(1), Status(500), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Watches()))
    assert trace.errors == []
    assert shown == [1, 3]


async def test_prompt_is_not_intercepted_again_where_the_program_puts_its_own_instructions_before_it(
    stage: Stage,
) -> None:
    async def play(agent: Agent) -> None:
        agent.messages.insert(0, {"role": "system", "content": "You are an agent."})
        await agent.ask()

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        assert contents(model.received[0].json["messages"]) == ["You are an agent.", f"{PROMPT} #1"]
    assert trace.errors == []
    assert len(trace.request_rewrites) == 1


async def test_equal_results_of_two_tools_are_two_messages(stage: Stage) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask()
        await agent.ask({"role": "user", "content": "again"})
        await agent.ask({"role": "user", "content": "again"})
        await agent.ask({"role": "user", "content": "again"})

    async with ModelServer(default=Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Counts()))
        assert trace.errors == []
        users = contents([m for m in model.received[3].json["messages"] if m["role"] == "user"])
    assert users == [f"{PROMPT} #1", "again #2", "again #3", "again #4"]


async def test_each_user_message_is_shown_alone_as_new_by_the_index_of_the_conversation(stage: Stage) -> None:
    """What an interceptor leaves alone costs nothing: an interceptor that changes old messages only breaks a rule."""

    class Late(Task[TaskData]):
        @intercept
        def late(self, request: Request) -> None:
            if len(request.messages) > 1:
                request.messages[0]["content"] = "another prompt"

    async def play(agent: Agent) -> None:
        await agent.ask()
        await agent.ask(result(1))

    async with ModelServer(wants(1), Say("done")) as model:
        trace = await played(stage.rollout(model, Acting(play), task=Late()))
        assert model.received[0].json["messages"] == SAID
    assert "changed message 0, which an earlier turn has seen" in trace.errors[0].message
