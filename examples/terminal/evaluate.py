"""A trainer for the terminal tasks: it admits each of them once and prints what came of it.

    python examples/terminal/evaluate.py [--server http://127.0.0.1:8000] [--policy http://127.0.0.1:9000/mixed/v1]

`--policy` is the base URL of any OpenAI-compatible server; the scripted one of `policy.py` by default. A key for it is
taken from the variable OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from uuid import uuid4

from rollbook.tasks import TaskData, load_rows, load_task
from rollbook_client import RolloutClient
from rollbook_client.messages import RolloutResultResponse


async def main(server: str, policy: str) -> None:
    rows = load_rows(load_task("terminal:Terminal"))
    async with RolloutClient(url=server) as client:
        for result in await asyncio.gather(*(_run(client, row, policy) for row in rows)):
            sample = result.sample
            said = f"{sample.reward:+.1f}" if sample and sample.reward is not None else result.err_message
            print(f"{result.rollout_id:32} {result.status:8} {said}")


async def _run(client: RolloutClient, row: TaskData, policy: str) -> RolloutResultResponse:
    return await client.run_rollout(
        row.messages(),
        policy,
        f"{row.id}-{uuid4().hex[:8]}",
        label=row.id,
        metadata={"task": row.to_json()},
        llm_api_key=os.environ.get("OPENAI_API_KEY"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs each terminal task once.")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--policy", default="http://127.0.0.1:9000/mixed/v1")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.server, arguments.policy))
