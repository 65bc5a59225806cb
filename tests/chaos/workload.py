"""What the chaos run executes: a few model calls one after the other, and a grader that counts their answers."""

from __future__ import annotations

from typing import Any

import httpx

from rollbook import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    get_rollout_context,
)

CALLS = 8
TIMEOUT_SEC = 30.0

workflow_config = AgentWorkflowConfig(name="workload", concurrency=ConcurrencyConfig(max_concurrent=6))


class Conversation(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the same again and again, so that whatever befalls its process may come between two calls."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[Any]:
        rollout = get_rollout_context()
        assert rollout is not None
        messages: list[Any] = list(ctx.prompt)
        async with httpx.AsyncClient(
            timeout=TIMEOUT_SEC, headers={"Authorization": f"Bearer {rollout.api_key}"}
        ) as http:
            for _ in range(CALLS):
                answer = await http.post(
                    f"{rollout.chat_completions_url}/chat/completions",
                    json={"model": "policy", "messages": [*messages, *ctx.prompt]},
                )
                answer.raise_for_status()
                messages.append(answer.json()["choices"][0]["message"])
        return messages


class Complete(Grader):
    """1 for a sample with all answers."""

    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        answers = [message for message in ctx.sample.messages if message["role"] == "assistant"]
        ctx.set_reward(1.0 if len(answers) == CALLS else 0.0)
