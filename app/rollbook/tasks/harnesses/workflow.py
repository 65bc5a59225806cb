"""WorkflowHarness: an `AgentWorkflow` as the agent of a task, so that it gets traces, limits and hooks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from rollbook.backends.recording import reach_loopback_directly
from rollbook.sdk.config import AgentWorkflowConfig
from rollbook.sdk.context import AgentWorkflowContext, RolloutContext, get_rollout_context
from rollbook.sdk.output import coerce_output
from rollbook.sdk.sample import coerce_sample
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.harnesses.workflow_loop import WorkflowLoop

__all__ = ["WorkflowHarness"]


class WorkflowHarness(Harness):
    """Runs the workflow in this process, with the interception endpoint as its policy's.

    All workflows of one harness run on an event loop of their own, in a thread; one that blocks it holds up the
    others, but neither the model's answers nor the time budget. The workflow's `ctx.metadata` is the task's
    `metadata`, where it has one. What it returns counts only where it made no model call; its metrics become the
    harness's.
    """

    name: ClassVar[str] = "workflow"

    def __init__(self, workflow: type[AgentWorkflow[Any]], config: AgentWorkflowConfig | None = None) -> None:
        self.workflow = workflow
        self.config = config
        self._metrics: dict[str, float] = {}
        self._loop = WorkflowLoop()
        reach_loopback_directly()

    def measurements(self) -> Mapping[str, float]:
        return self._metrics

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        return await self._loop.run(lambda: self._run(exchange))

    async def _run(self, exchange: Exchange) -> list[MessageDict] | None:
        config = copy.deepcopy(self.config)
        metadata = exchange.data.extra.get("metadata")
        context = AgentWorkflowContext(
            exchange.messages, config, metadata=metadata, artifacts_dir=exchange.runtime.folder
        )
        outer = get_rollout_context() or RolloutContext(rollout_id=exchange.data.id)
        with outer.through(lambda: (exchange.chat_url, exchange.api_key)) as ambient:
            output = coerce_output(await self.workflow(config).run(context))
            if output is not None:
                self._metrics = dict(output.metrics)
                return output.messages
            sample = coerce_sample(await ambient.get_sample())
        return None if sample is None else sample.messages
