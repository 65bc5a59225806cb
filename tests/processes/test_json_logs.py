"""`serve --log-format json`: every line that any of its processes writes is one JSON object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from rollbook_client import RolloutClient
from tests.support.processes import free_port

LIMIT_SEC = 60
KEY = 'sk-"a key"-0123456789'
FLOW = """
import logging
from rollbook import AgentWorkflow, get_rollout_context

class Talker(AgentWorkflow):
    async def run(self, ctx):
        print("printed", get_rollout_context().api_key)
        logging.getLogger("talker").warning("logged %s", get_rollout_context().api_key)
        raise ValueError("two" + chr(10) + "lines")
"""


async def test_every_line_is_an_object_and_those_of_a_rollout_name_it(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(FLOW)
    port = free_port()
    command = [sys.executable, "-m", "rollbook", "serve", "talker.py", "--port", str(port), "--log-format", "json"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            async with RolloutClient(url=f"http://127.0.0.1:{port}") as client:
                result = await client.run_rollout(
                    initial_messages=[],
                    chat_completions_url="http://127.0.0.1:9/v1",
                    rollout_id="r-1",
                    llm_api_key=KEY,
                )
            assert result.status == "failure"
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=LIMIT_SEC)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    lines = [line for text in (ready + rest, (tmp_path / "log").read_bytes()) for line in text.splitlines()]
    objects = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    by_message = {line["message"]: line for line in objects}
    assert any(message.startswith("listening on") for message in by_message)
    assert "stopped" in by_message
    for message, logger in (("printed [llm_api_key]", "stdout"), ("logged [llm_api_key]", "talker")):
        line = by_message[message]
        assert (line["logger"], line["process"], line["rollout_id"], line["attempt"]) == (logger, "runner", "r-1", 1)
        assert line["scheduler"]
    assert "a key" not in str(objects)
    assert {line["pid"] for line in objects} != {os.getpid()}
