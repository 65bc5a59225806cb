"""A workflow that has a model multiply two numbers, and a grader that wants the exact product."""

from __future__ import annotations

import re

import httpx

from rollbook import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    get_rollout_context,
)

REQUEST_TIMEOUT_SEC = 60.0

# One runner works on so many rollouts at a time; most of their time they wait for the model.
workflow_config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=8))


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Sends the row's prompt to the model that is being trained, once."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        """The prompt and the model's answer, with the number of tokens it took."""
        rollout = get_rollout_context()
        assert rollout is not None  # there is one wherever a server runs this
        headers = {"Authorization": f"Bearer {rollout.api_key}"} if rollout.api_key else {}
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_SEC, headers=headers) as http:
            answer = await http.post(
                f"{rollout.chat_completions_url}/chat/completions",
                json={"model": "policy", "messages": ctx.prompt, "temperature": 1.0},
            )
        answer.raise_for_status()
        completion = answer.json()
        message = completion["choices"][0]["message"]
        return AgentWorkflowOutput(
            messages=[*ctx.prompt, {"role": "assistant", "content": message["content"]}],
            metrics={"completion_tokens": completion["usage"]["completion_tokens"]},
        )


class ExactMatchGrader(Grader):
    """1 for the exact product, else 0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Compare the last `Answer: …` of the conversation with the row's ground truth."""
        assert ctx.sample is not None  # the workflow returned messages
        found = re.findall(r"Answer:\s*(-?\d+)", ctx.sample.messages[-1]["content"])
        ctx.set_reward(1.0 if found and found[-1] == ctx.label else 0.0)
