"""The workflow and the grader of the server benchmark: they do nothing that takes time."""

from __future__ import annotations

from typing import Any

from rollbook import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext


class Echo(AgentWorkflow[AgentWorkflowConfig]):
    """Answers with the prompt's last text."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        """The prompt and its echo."""
        return [*ctx.prompt, {"role": "assistant", "content": ctx.prompt[-1]["content"]}]


class Exact(Grader):
    """One point for the label."""

    async def grade(self, ctx: GraderContext) -> None:
        """Compare the last message with the label."""
        assert ctx.sample is not None
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)
