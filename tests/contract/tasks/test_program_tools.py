"""A task's tools as programs in a runtime find them: by a variable or a file, and that their calls end with it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.sdk.context import RolloutContext, get_rollout_context
from rollbook.tasks.data import TaskData, Timeouts
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.hooks import reward
from rollbook.tasks.runtimes import BubblewrapRuntime
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from rollbook.tasks.task import Task
from rollbook.tasks.toolsets import Toolset, tool
from rollbook.traces.trace import Trace
from tests.contract.tasks.playing import PROMPT, WAIT_SEC, Stage, WatchedEndpoint, played
from tests.support.model_server import ModelServer, Say
from tests.support.runtimes import open_folder

BASE = Path(sys.base_prefix).resolve()
PYTHON = os.path.realpath(sys.executable)
"""The interpreter behind whatever environment this is; sandboxes are shown its folder."""

PROGRAM = """
import json, os, urllib.request
url = os.environ["ROLLBOOK_TOOLS_URL"]
told = json.load(open(os.environ["ROLLBOOK_MCP_CONFIG"]))
assert told == {"mcpServers": {"rollbook": {"type": "http", "url": url}}}, told
def send(method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["result"]
def call(name, **arguments):
    result = send("tools/call", name=name, arguments=arguments)
    return result["content"][0]["text"], result["isError"]
assert send("initialize", protocolVersion="2025-06-18")["protocolVersion"] == "2025-06-18"
"""


class Notes(Toolset):
    """Tools that ask for what the rollout gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    @tool
    async def note(self, text: str, data: TaskData, runtime: Runtime, trace: Trace) -> str:
        """Write a note."""
        await runtime.write("note.txt", f"{data.id}: {text}".encode())
        ambient = get_rollout_context()
        return f"{trace.rollout_id}: {ambient.rollout_id if ambient else None}"

    @tool
    async def fail(self) -> None:
        """Fail."""
        raise OSError("no such disk")

    @tool
    async def wait(self) -> None:
        """Never end."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Noted(Task[TaskData]):
    """Is right where the tool wrote the note."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.toolsets = (self.notes,)

    @reward
    async def right(self, runtime: Runtime) -> float:
        return float(await runtime.read("note.txt") == b"t-1: 6 x 7")


@pytest.fixture
def parent() -> Iterator[Path]:
    with open_folder("tools") as path:
        yield path


def with_python(kind: type[OwnedRuntime], parent: Path) -> OwnedRuntime:
    """A runtime in which the interpreter is."""
    options: dict[str, Any] = {"parent": parent}
    if issubclass(kind, BubblewrapRuntime) and not BASE.is_relative_to("/usr"):
        options["shown"] = [BASE]
    return kind(**options)


async def test_program_calls_the_tasks_tools_in_every_runtime(
    endpoint: WatchedEndpoint, kind: type[OwnedRuntime], parent: Path
) -> None:
    script = """
assert [offered["name"] for offered in send("tools/list")["tools"]] == ["note", "fail", "wait"]
assert set(send("tools/list")["tools"][0]["inputSchema"]["properties"]) == {"text"}
assert call("note", text="6 x 7") == ("r-1: r-1", False)
assert call("fail") == ("error: OSError: no such disk", True)
assert call("fly")[0].startswith("error: there is no tool 'fly'")
assert call("note", txt="6 x 7")[1]
"""
    stage, task = Stage(endpoint, parent), Noted()
    rollout = stage.rollout(
        None,
        ProgramHarness([PYTHON, "-c", PROGRAM + script]),
        task=task,
        runtime=lambda: with_python(kind, parent),
        rollout_id="r-1",
    )
    with RolloutContext(rollout_id="r-1"):
        trace = await played(rollout)
    assert trace.errors == []
    assert trace.rewards == {"right": 1.0}
    assert stage.left_behind == []


async def test_tool_that_runs_when_the_budget_is_over_ends_before_scores(stage: Stage) -> None:
    task = Noted()
    data = TaskData(id="t-1", prompt=PROMPT, timeouts=Timeouts(agent=2.0))
    harness = ProgramHarness([PYTHON, "-c", PROGRAM + "call('wait')"])
    trace = await played(stage.rollout(None, harness, task=task, data=data))
    assert [error.category for error in trace.errors] == ["timeout"]
    assert task.notes.started.is_set()
    assert task.notes.ended.is_set()
    assert stage.left_behind == []


async def test_tool_that_a_server_of_the_program_waits_for_ends_with_the_rollout(stage: Stage) -> None:
    task = Noted()
    call = shlex.join([PYTHON, "-c", PROGRAM + "call('wait')"])
    rollout = stage.rollout(None, ProgramHarness(f"{call} >/dev/null 2>&1 &"), task=task)
    assert await rollout.open()
    await rollout.step()
    async with asyncio.timeout(WAIT_SEC):
        await task.notes.started.wait()
    assert not task.notes.ended.is_set()
    trace = await rollout.close(scored=False)
    assert trace.errors == []
    assert task.notes.ended.is_set()


async def test_task_without_tools_offers_none(stage: Stage) -> None:
    script = """
import glob, os
assert "ROLLBOOK_TOOLS_URL" not in os.environ and "ROLLBOOK_MCP_CONFIG" not in os.environ
assert glob.glob(".rollbook/*/messages.json") and not glob.glob(".rollbook/*/mcp.json")
"""
    trace = await played(stage.rollout(None, ProgramHarness([PYTHON, "-c", script])))
    assert trace.errors == []


async def test_secret_in_the_tools_url_is_not_kept_in_errors(stage: Stage) -> None:
    harness = ProgramHarness('echo "no tools at $ROLLBOOK_TOOLS_URL" >&2; exit 1')
    trace = await played(stage.rollout(None, harness, task=Noted()))
    assert trace.errors[0].message.endswith("/s/[key]/mcp")


async def test_file_with_the_secret_is_its_owners_alone(stage: Stage) -> None:
    class Tooled(Task[TaskData]):
        toolsets = (Notes(),)

    harness = ProgramHarness('test "$(stat -c %a "$ROLLBOOK_MCP_CONFIG")" = 600')
    trace = await played(stage.rollout(None, harness, task=Tooled()))
    assert trace.errors == []


async def test_model_calls_and_tool_calls_go_through_one_port(stage: Stage) -> None:
    script = """
from urllib.parse import urlsplit
assert urlsplit(url).netloc == urlsplit(os.environ["OPENAI_BASE_URL"]).netloc
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": json.load(open(os.environ["ROLLBOOK_MESSAGES"]))}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
text = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
assert call("note", text=text)[1] is False
"""
    async with ModelServer(Say("6 x 7")) as model:
        trace = await played(stage.rollout(model, ProgramHarness([PYTHON, "-c", PROGRAM + script]), task=Noted()))
        assert len(model.received) == 1
    assert trace.errors == []
    assert trace.num_turns == 1
    assert trace.rewards == {"right": 1.0}
