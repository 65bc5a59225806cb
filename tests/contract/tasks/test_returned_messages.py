"""What a program returns is no conversation of its rollout where the rollout has calls: those say what was said."""

from __future__ import annotations

from rollbook.sdk.values import MessageDict
from tests.contract.tasks.playing import PROMPT, SAID, Acting, Agent, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say, Status

CLAIMED: list[MessageDict] = [*SAID, {"role": "assistant", "content": "what no model has said"}]


async def _claims(agent: Agent) -> list[MessageDict]:
    return CLAIMED


async def test_segment_without_a_call_adds_nothing_to_a_conversation_that_has_some(stage: Stage) -> None:
    async with ModelServer(default=Say("42")) as model:
        rollout = stage.rollout(model, Acting(ask_once, _claims))
        assert await rollout.open()
        assert await rollout.step()
        assert await rollout.step([{"role": "user", "content": "And?"}]) is False
        trace = await rollout.close()
    assert trace.ok
    assert [node.message["content"] for node in trace.nodes] == [PROMPT, "42"]


async def test_program_whose_calls_all_failed_has_said_nothing(stage: Stage) -> None:
    async def asks_and_claims(agent: Agent) -> list[MessageDict]:
        assert (await agent.ask()).status == 500
        return CLAIMED

    async with ModelServer(Status(500)) as model:
        trace = await played(stage.rollout(model, Acting(asks_and_claims)))
    assert trace.errors[0].type == "ModelCallError"
    assert trace.nodes == []
