"""Exchanges that are driven turn by turn: by a function, by hand, by another agent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.interaction import Interaction, alternate, interact
from rollbook.tasks.limits import RolloutLimits
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Acting, Agent, Stage, ask_once
from tests.support.model_server import ModelServer, Received, Say, Status

OPEN = TaskData(id="t-1", system_prompt="You sell tea.", timeouts=Timeouts(agent=WAIT_SEC))


def echo(request: Received) -> Say:
    """Answers with what it was told last, and how long the conversation is."""
    messages = request.json["messages"]
    return Say(f"{len(messages)}: {messages[-1]['content']}")


async def test_turns_are_said_by_hand_and_answered(stage: Stage) -> None:
    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), data=OPEN, user=True)
        assert await rollout.open()
        talk = Interaction(rollout)
        assert await talk.turn("hello") == "2: hello"
        assert not talk.over
        assert await talk.turn("green or black?") == "4: green or black?"
        assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
        trace = await rollout.close()
    assert trace.ok
    assert trace.num_turns == 2
    assert len(trace.branches) == 1


async def test_user_function_drives_until_it_has_no_more_to_say_and_its_time_costs_nothing(stage: Stage) -> None:
    heard: list[list[MessageDict]] = []
    spent: list[float] = []

    async def user(conversation: list[MessageDict]) -> str | None:
        heard.append(conversation)
        spent.append(rollout.spent_sec)
        assert rollout.spent_sec == spent[-1], "the budget ran while the user thought"
        return None if len(heard) == 3 else f"question {len(heard)}"

    async with ModelServer(default=echo) as model:
        data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=WAIT_SEC))
        rollout = stage.rollout(model, ChatHarness(), data=data)
        await rollout.open()
        await interact(rollout, user)
        trace = await rollout.close()
    assert [len(conversation) for conversation in heard] == [2, 4, 6]
    assert heard[2][-1]["content"] == "5: question 2"
    assert trace.num_turns == 3
    assert trace.stop_condition is None
    assert trace.ok


async def test_user_opens_where_the_task_has_no_prompt(stage: Stage) -> None:
    heard: list[list[MessageDict]] = []

    async def user(conversation: list[MessageDict]) -> str | None:
        heard.append(conversation)
        return "hello" if len(heard) == 1 else None

    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), data=OPEN, user=True)
        await rollout.open()
        await interact(rollout, user)
        trace = await rollout.close()
    assert heard[0] == [{"role": "system", "content": "You sell tea."}]
    assert trace.num_turns == 1


async def test_exchange_is_over_when_a_limit_stops_it(stage: Stage) -> None:
    async def user(conversation: list[MessageDict]) -> str | None:
        return "go on"

    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), limits=RolloutLimits(max_turns=3))
        await rollout.open()
        await interact(rollout, user)
        trace = await rollout.close()
        assert len(model.received) == 3
    assert trace.stop_condition == "max_turns"
    assert trace.ok


async def test_exchange_is_over_when_the_agent_makes_no_progress(stage: Stage) -> None:
    asked = 0

    async def user(conversation: list[MessageDict]) -> str | None:
        nonlocal asked
        asked += 1
        return "go on"

    async def idle(agent: Agent) -> None:
        return None

    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, Acting(ask_once, idle))
        await rollout.open()
        await interact(rollout, user)
        trace = await rollout.close()
    assert asked == 1, "a user was asked about a conversation that does not move"
    assert trace.ok


async def test_exchange_is_over_when_the_agent_fails(stage: Stage) -> None:
    async with ModelServer(Say("42"), Status(400)) as model:
        rollout = stage.rollout(model, ChatHarness())
        await rollout.open()
        talk = Interaction(rollout)
        assert await talk.turn() == "42"
        assert await talk.turn("and now?") is None
        assert talk.over
        trace = await rollout.close()
    assert trace.errors[0].type == "ModelCallError"


async def test_two_agents_alternate(stage: Stage) -> None:
    def seller(request: Received) -> Say:
        return Say(f"offer {sum(message['role'] == 'user' for message in request.json['messages'])}")

    def buyer(request: Received) -> Say:
        return Say(f"no, to {request.json['messages'][-1]['content']}")

    async with ModelServer(default=seller) as sells, ModelServer(default=buyer) as buys:
        one = stage.rollout(sells, ChatHarness(), data=OPEN, user=True)
        other = stage.rollout(buys, ChatHarness(), data=OPEN, user=True, limits=RolloutLimits(max_turns=2))
        assert await one.open()
        assert await other.open()
        await alternate(one, other, opening="what have you?")
        selling, buying = await one.close(), await other.close()
    assert [message["content"] for message in selling.final_branch.messages] == [  # type: ignore[union-attr]
        "You sell tea.",
        "what have you?",
        "offer 1",
        "no, to offer 1",
        "offer 2",
        "no, to offer 2",
        "offer 3",
    ]
    assert [message["content"] for message in buying.final_branch.messages][1:5] == [  # type: ignore[union-attr]
        "offer 1",
        "no, to offer 1",
        "offer 2",
        "no, to offer 2",
    ]
    assert selling.stop_condition is None
    assert buying.stop_condition == "max_turns"
    assert selling.ok
    assert buying.ok


async def test_while_one_agent_speaks_the_others_budget_stands_still(stage: Stage) -> None:
    spent: list[tuple[float, float]] = []

    async def speaks(agent: Agent) -> None:
        spent.append((other.spent_sec, one.spent_sec))
        await agent.ask()
        assert spent[-1][0] == other.spent_sec

    async with ModelServer(default=echo) as model:
        one = stage.rollout(model, Acting(speaks), data=OPEN, user=True)
        other = stage.rollout(model, ChatHarness(), data=OPEN, user=True, limits=RolloutLimits(max_turns=2))
        await one.open()
        await other.open()
        await alternate(one, other, opening="hello")
        traces = await one.close(), await other.close()
    assert all(trace.ok for trace in traces)
    assert len(spent) == 3


async def test_user_function_that_raises_breaks_the_exchange_off(stage: Stage) -> None:
    async def user(conversation: list[MessageDict]) -> str | None:
        raise LookupError("no such customer")

    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), user=True)
        await rollout.open()
        with pytest.raises(LookupError, match="no such customer"):
            await interact(rollout, user)
        assert await rollout.step([{"role": "user", "content": "hello?"}]) is False
        trace = await rollout.close()
    assert not trace.ok
    assert trace.num_turns == 1
    [error] = trace.errors
    assert (error.stage, error.type, error.category) == ("agent", "LookupError", "agent_error")
    assert "no such customer" in error.message


async def test_user_function_that_returns_no_text_breaks_the_exchange_off(stage: Stage) -> None:
    async def user(conversation: list[MessageDict]) -> str | None:
        return 5  # type: ignore[return-value]

    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), data=OPEN, user=True)
        await rollout.open()
        with pytest.raises(TypeError, match=r"the user returned 5 \(int\); have it return text, or None for the end"):
            await interact(rollout, user)
        trace = await rollout.close()
    assert (trace.ok, trace.nodes) == (False, [])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (["hello"], r"messages\[0\]"),
        ("hello", "messages must be"),
        ({"role": "user", "content": "hello"}, "messages must be"),
        (5, "messages must be"),
        ([{"content": "hello"}], r"messages\[0\] has no role"),
        ([{"role": "user", "content": math.nan}], r"messages\[0\] has no JSON form"),
        ([{"role": "user", "content": object()}], r"messages\[0\] has no JSON form"),
    ],
)
async def test_what_are_no_messages_is_refused_before_anything_changes(stage: Stage, messages: Any, text: str) -> None:
    async with ModelServer(default=echo) as model:
        rollout = stage.rollout(model, ChatHarness(), data=OPEN, user=True)
        await rollout.open()
        with pytest.raises(TypeError, match=text):
            await rollout.step(messages)
        assert (rollout.failed, rollout.messages[1:], rollout.spent_sec) == (False, [], 0.0)
        assert await Interaction(rollout).turn("hello") == "2: hello"
        assert (await rollout.close()).ok
