"""A policy's server that repeats key and path in its errors, and a program that prints all it gets: none is kept."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap

import pytest

from tests.support.commands import environment, outcome, start
from tests.support.contents import all_bytes
from tests.support.model_server import ModelServer, Received, Status, in_thread
from tests.support.processes import Deployment

KEY = "sk-12345"
SECRETS = (KEY, "secretpath123", "QUERYSECRET9")

ENTRY = """
    from rollbook.tasks import ProgramHarness, SubprocessRuntime, Task, TaskBackend, TaskData

    class Bare(Task[TaskData]):
        pass

    backend = TaskBackend(task=Bare, harness=ProgramHarness({command!r}), runtime=SubprocessRuntime)
"""
PROGRAM = """
    import os, sys, urllib.error, urllib.request
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"messages": []}')
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())
"""


def echo(received: Received) -> Status:
    said = f"bad key {received.headers['authorization']} at {received.path}"
    return Status(401, json.dumps({"error": {"message": said}}).encode())


@pytest.mark.parametrize("path", ["/echo/secretpath123/v1", "/v1?key=QUERYSECRET9"])
async def test_what_a_policys_server_repeats_is_nowhere(deployment: Deployment, path: str) -> None:
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(textwrap.dedent(PROGRAM))}"
    (deployment.folder / "repeats.py").write_text(textwrap.dedent(ENTRY).format(command=command))
    where = ("--database-url", deployment.database_url, "--port", str(deployment.port))
    deployment.start("serve", "-m", "rollbook", "serve", "repeats.py:backend", *where)
    await deployment.answering()
    with in_thread(ModelServer(default=echo)) as model:
        url = model.url.removesuffix("/v1") + path
        async with deployment.client() as client:
            result = await client.run_rollout([{"role": "user", "content": "hi"}], url, "r-1", llm_api_key=KEY)
        assert model.received
    assert result.status == "failure"
    variables = environment(ROLLBOOK_DATABASE_URL=deployment.database_url)
    told = outcome(start("trace", "r-1", "--json", cwd=deployment.folder, env=variables))
    assert told.out.count("bad key Bearer [llm_api_key] at ") >= 3, "the call, its error and the program's"
    assert "[chat_completions_url]" in told.out
    everywhere = f"{result.err_message} {told.out} {deployment.output}".encode() + all_bytes(deployment.database_url)
    assert [secret for secret in SECRETS if secret.encode() in everywhere] == []
