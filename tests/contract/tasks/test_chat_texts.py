"""Texts that have no UTF-8 form, on their way through the loop with tools."""

from __future__ import annotations

import os

from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset, tool
from tests.contract.tasks.playing import Stage, played
from tests.support.model_server import ModelServer, Raw, Say


class Folder(Toolset):
    """Lists names that are not UTF-8, as ``os.listdir`` gives them."""

    @tool
    async def names(self) -> str:
        """List the names."""
        return os.fsdecode(b"caf\xe9.txt")

    @tool
    async def pairs(self) -> list[str]:
        """List the names."""
        return [os.fsdecode(b"\xff"), "fine \U0001f600"]


class Lists(Task[TaskData]):
    """Has the tools."""

    toolsets = (Folder(),)


async def test_lone_surrogates_of_a_tools_result_are_replaced(stage: Stage) -> None:
    calls = [("c1", "names", "{}"), ("c2", "pairs", "{}")]
    async with ModelServer(Say(None, tool_calls=calls), Say("done")) as model:
        trace = await played(stage.rollout(model, ChatHarness(), task=Lists()))
        results = [message["content"] for message in model.received[1].json["messages"][-2:]]
    assert trace.errors == []
    assert results == ["caf\ufffd.txt", '["\ufffd", "fine \U0001f600"]']


async def test_lone_surrogate_of_the_models_own_answer_goes_back_as_it_came(stage: Stage) -> None:
    answer = (
        rb'{"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", '
        rb'"content": "odd \ud83d", "tool_calls": [{"id": "c1", "type": "function", '
        rb'"function": {"name": "names", "arguments": "{}"}}]}}]}'
    )
    async with ModelServer(Raw([answer]), Say("done")) as model:
        trace = await played(stage.rollout(model, ChatHarness(), task=Lists()))
        assert model.received[1].json["messages"][-2]["content"] == "odd \ud83d"
    assert trace.errors == []
    assert len(trace.branches) == 1
