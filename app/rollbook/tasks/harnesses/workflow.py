"""WorkflowHarness: an `AgentWorkflow` as the agent of a task, so that it gets traces, limits and hooks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext, RolloutContext
from rollbook.sdk.output import coerce_output
from rollbook.sdk.sample import coerce_sample
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook.tasks.harnesses.base import Exchange, Harness

__all__ = ["WorkflowHarness"]


class WorkflowHarness(Harness):
    """Runs the workflow in this process, with the interception endpoint as its policy's.

    The workflow's `ctx.metadata` is the task's `metadata`, where it has one. What it returns counts only where it
    made no model call; its metrics become the harness's.
    """

    name: ClassVar[str] = "workflow"

    def __init__(self, workflow: type[AgentWorkflow[Any]], config: AgentWorkflowConfig | None = None) -> None:
        self.workflow = workflow
        self.config = config
        self._metrics: dict[str, float] = {}

    def measurements(self) -> Mapping[str, float]:
        return self._metrics

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        config = copy.deepcopy(self.config)
        metadata = exchange.data.extra.get("metadata")
        context = AgentWorkflowContext(
            exchange.messages, config, metadata=metadata, artifacts_dir=exchange.runtime.folder
        )
        with RolloutContext(exchange.chat_url, exchange.api_key, rollout_id=exchange.data.id) as ambient:
            output = coerce_output(await self.workflow(config).run(context))
            if output is not None:
                self._metrics = dict(output.metrics)
                return output.messages
            sample = coerce_sample(await ambient.get_sample())
        return None if sample is None else sample.messages
