"""A policy's URL that its server repeats in errors: it comes back by no way, a program's own words included."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.rollout import Rollout
from rollbook.traces.storage import dumps
from tests.contract.tasks.playing import PROMPT, Bare, Stage, played
from tests.support.model_server import ModelServer, Received, Status

KEY = "sk-0123456789"

SAYS_ALL = """
import os, sys, urllib.error, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"messages": []}')
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print(error.headers, error.read().decode())
    sys.exit("the model said: " + str(error))
"""


def echo(received: Received) -> Status:
    said = f"bad key {received.headers['authorization']} at {received.path}"
    return Status(401, json.dumps({"error": {"message": said}}).encode(), headers={"X-Asked": received.path})


@pytest.mark.parametrize("path", ["/echo/secretpath123/v1", "/v1?key=QUERYSECRET9"])
async def test_url_that_a_server_repeats_is_not_in_the_trace(stage: Stage, path: str) -> None:
    program = ProgramHarness(f"{shlex.quote(sys.executable)} -c {shlex.quote(SAYS_ALL)}")
    async with ModelServer(default=echo) as model:
        rollout = Rollout(
            Bare(),
            TaskData(id="t-1", prompt=PROMPT),
            program,
            stage.runtime,
            chat_completions_url=model.url.removesuffix("/v1") + path,
            api_key=KEY,
            endpoint=stage.endpoint,
        )
        trace = await played(rollout)
        assert model.received
    whole = dumps(trace).decode()
    assert "bad key Bearer [llm_api_key] at " in trace.info["program"]["stdout"]
    assert "[chat_completions_url]" in trace.info["program"]["stdout"]
    assert not any(secret in whole for secret in (KEY, "secretpath123", "QUERYSECRET9"))
