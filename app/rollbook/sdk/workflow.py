"""The base class of agent workflows."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext
from rollbook.sdk.output import AgentWorkflowOutput
from rollbook.sdk.values import MessageDict


class AgentWorkflow[TConfig: AgentWorkflowConfig](ABC):
    """Produces one sample per run. A new instance is made for every rollout."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> AgentWorkflowOutput | list[MessageDict] | None:
        """Run the agent on ``ctx.prompt`` and return its conversation.

        None falls back to the `SampleSource` registered on the ambient `RolloutContext`; an output whose messages
        are None does not. ``ValueError``, ``TypeError`` and ``AssertionError`` fail the rollout as
        `validation_error`, ``TimeoutError`` as `timeout`, everything else as `agent_error`.
        """
