"""Backends out of plain functions, and requests with few words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rollbook.backends.base import ExecutionRequest
from rollbook.backends.local import LocalBackend
from rollbook.sdk.config import AgentWorkflowConfig, ConcurrencyConfig
from rollbook.sdk.context import AgentWorkflowContext, GraderContext
from rollbook.sdk.grader import Grader
from rollbook.sdk.workflow import AgentWorkflow

type Context = AgentWorkflowContext[AgentWorkflowConfig]

WAIT_SEC = 20
"""How long a test waits for what must happen; long, because a loaded machine is no failure."""

REPLY = {"role": "assistant", "content": "42"}


async def replying(ctx: Context) -> Any:
    """A workflow that answers 42."""
    return [*ctx.prompt, REPLY]


async def rewarding(ctx: GraderContext) -> Any:
    """A grader that gives 1."""
    ctx.set_reward(1.0)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds; for states that tell nobody when they change."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


def make_backend(
    run: Callable[[Context], Awaitable[Any]] = replying,
    grade: Callable[[GraderContext], Awaitable[Any]] | None = rewarding,
    *,
    max_concurrent: int | None = None,
    record_model_calls: bool | None = None,
) -> LocalBackend:
    """A LocalBackend whose workflow and grader are the given functions."""

    class Workflow(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: Context) -> Any:
            return await run(ctx)

    class FunctionGrader(Grader):
        async def grade(self, ctx: GraderContext) -> Any:
            assert grade is not None
            return await grade(ctx)

    return LocalBackend(
        workflow=Workflow,
        workflow_config=AgentWorkflowConfig(name="t", concurrency=ConcurrencyConfig(max_concurrent=max_concurrent)),
        grader=None if grade is None else FunctionGrader,
        record_model_calls=record_model_calls,
    )


def make_request(rollout_id: str = "r", **fields: Any) -> ExecutionRequest:
    """A request with a prompt and a label, unless told otherwise."""
    return ExecutionRequest(
        id=rollout_id, **{"prompt": [{"role": "user", "content": "6 * 7"}], "label": "42", **fields}
    )
