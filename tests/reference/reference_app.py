"""The reference server in a process of its own, with a workflow whose behaviour each request chooses.

    python reference_app.py LISTENING_SOCKET_FD API_KEY

Metadata: `raise` names a built-in exception to raise; `until` is a file whose appearance lets the workflow return.
The grader compares the answer with the label.
"""

import asyncio
import builtins
import sys
from pathlib import Path
from typing import Any

import uvicorn
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server


class Chosen(AgentWorkflow[Any]):
    async def run(self, ctx: Any) -> Any:
        plan = ctx.metadata or {}
        if "raise" in plan:
            raise getattr(builtins, plan["raise"])("chosen failure")
        # Another process gives the sign, so there is no event to wait for.
        while "until" in plan and not await asyncio.to_thread(Path(plan["until"]).exists):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return [*ctx.prompt, {"role": "assistant", "content": ctx.prompt[-1]["content"]}]


class ExactMatch(Grader):
    async def grade(self, ctx: Any) -> None:
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)


if __name__ == "__main__":
    app = create_rollout_server(
        backend=LocalBackend(workflow=Chosen, grader=ExactMatch),
        result_wait_timeout_sec=0.5,
        polling_lease_timeout_sec=2.0,
        api_key=sys.argv[2],
    )
    uvicorn.run(app, fd=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=5)
