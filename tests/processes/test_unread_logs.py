"""A log that nobody reads holds up the workflow that fills it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from rollbook_client import RolloutClient
from tests.support.processes import free_port, until

LIMIT_SEC = 60
FLOW = """
from rollbook import AgentWorkflow

class Talker(AgentWorkflow):
    async def run(self, ctx):
        if ctx.prompt[-1]["content"] == "talk":
            for _ in range(2_000):
                print("x" * 50_000)
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]
"""


async def test_an_unread_log_stalls_neither_other_rollouts_nor_beats_nor_the_end(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(FLOW)
    port = free_port()
    unread, output = os.pipe()
    command = (sys.executable, "-m", "rollbook", "serve", "talker.py", "--port", str(port))
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    os.close(output)
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(LIMIT_SEC), RolloutClient(url=url) as client:
            await until(lambda: _answers(url), what="the server answers")
            talked = await client.run_rollout(
                [{"role": "user", "content": "talk"}],
                "http://127.0.0.1:9/v1",
                "talker",
                grade=False,
                agent_timeout_sec=1,
            )
            assert talked.err_category == "timeout", talked
            assert "blocked its runner's event loop" in (talked.err_message or "")
            quiet = await client.run_rollout(
                [{"role": "user", "content": "hello"}], "http://127.0.0.1:9/v1", "quiet", grade=False
            )
            assert quiet.status == "success"
            assert (await client.health())["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, LIMIT_SEC) == 0
    finally:
        process.kill()
        process.wait()
        os.close(unread)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False
