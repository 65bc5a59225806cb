"""docs/tasks.md, as it is written: its task behind a server, and every other program of the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.urls import SQLITE
from rollbook.tasks import ChatHarness, ProgramHarness, Rollout, SubprocessRuntime, TaskData, Trace
from tests.support.documents import programs, write_named
from tests.support.model_server import ModelServer, Received, Reply, Say, in_thread, model_server
from tests.support.processes import Deployment
from tests.support.runtimes import HAS_SANDBOXES

PAGE = "docs/tasks.md"


@pytest.fixture
def database() -> str:
    """What needs no server."""
    return SQLITE


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the programs of the page define, the one of the trainer left out."""
    names: dict[str, Any] = {"__name__": "documented_tasks"}
    for program in programs(PAGE):
        if "asyncio.run" not in program:
            exec(compile(program, PAGE, "exec", dont_inherit=True), names)
    if not HAS_SANDBOXES:
        names["BubblewrapRuntime"] = SubprocessRuntime
    return names


def sums_up(received: Received) -> Reply:
    """A model that adds numbers up, and says so afterwards."""
    if received.json["messages"][-1]["role"] == "tool":
        return Say("It is written.")
    command = "awk '{ sum += $1 } END { print sum }' amounts.txt > total.txt"
    return Say(None, [("c1", "run", f'{{"command": "{command}"}}')])


async def play(task: Any, harness: Any, url: str = "http://127.0.0.1:9/v1") -> Trace:
    """A rollout of a task of the page."""
    data = TaskData(id="x", prompt="Write a report.")
    rollout = Rollout(task, data, harness, SubprocessRuntime, chat_completions_url=url)
    try:
        assert await rollout.open(), rollout.trace.errors
        await rollout.step()
        return await rollout.close()
    finally:
        await rollout.abort()


async def test_first_task_works_as_written(deployment: Deployment) -> None:
    entry, trainer = write_named(PAGE, deployment.folder)
    assert (entry.name, trainer.name) == ("sums.py", "admit.py")
    if not HAS_SANDBOXES:
        entry.write_text(entry.read_text().replace("BubblewrapRuntime", "SubprocessRuntime"))
    deployment.serve(entrypoint=Path(f"{entry}:backend"))
    await deployment.answering()
    with in_thread(ModelServer(default=sums_up)) as model:
        run = deployment.start("admit", trainer.name, deployment.url, model.url)
        assert await run.end() == 0, run.output
    assert [line.split()[1:] for line in run.output.splitlines()] == [["success", "1.0"]] * 3
    reports = "SELECT model_calls, rewards, metrics, stop_condition FROM rollout_reports"
    assert deployment.rows(reports) == [(2, '{"right": 1.0}', '{"turns": 2.0}', None)] * 3


async def test_scores_of_the_page(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_URL", raising=False)
    trace = await play(page["Report"](), ProgramHarness("echo '## summary' > report.md"))
    assert trace.ok
    assert trace.rewards == {"has_summary": 1.0, "has_details": 0.0, "talkative": 0.0, "clear": None}
    assert trace.reward == 2.0
    assert "JUDGE_URL" in trace.errors[0].message


async def test_hooks_of_the_page(page: dict[str, Any]) -> None:
    async with model_server(Say("Ada says: I give up.")) as model:
        trace = await play(page["Careful"](), ChatHarness(), model.url)
    assert (trace.ok, trace.stop_condition) == (True, "gave_up")
    assert trace.final_branch is not None
    assert trace.final_branch.messages[-1]["content"] == "somebody says: I give up."
    assert [rewrite.hook for rewrite in trace.response_rewrites] == ["no_names"]


async def test_conversation_of_the_page(page: dict[str, Any]) -> None:
    async with model_server(default=sums_up) as model:
        trace = await page["talk"](page["Sum"](), model.url)
    said = [message["content"] for message in trace.final_branch.messages if message["role"] == "user"]
    assert said[1:] == ["Are you sure?"] * (len(said) - 1) and len(said) > 1
    assert (trace.ok, trace.rewards) == (True, {"right": 1.0})


def test_program_of_the_page_is_one_that_the_developers_packages_bring(page: dict[str, Any]) -> None:
    assert (Path(sys.executable).parent / page["harness"].command[0]).exists()
