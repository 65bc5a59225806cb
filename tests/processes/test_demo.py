"""The demo as a command: its output with and without a terminal, and that no process is left, however it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import SQLITE
from tests.support.ledger import rows
from tests.support.processes import RUNNER_MODULE, Deployment, Started, until

DEMO = ("-m", "rollbook", "demo")
LAUNCHED_DEMO = ("rollbook", "demo")
ON_A_TERMINAL = (
    "-c",
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-m', 'rollbook', 'demo'])))",
)


@pytest.fixture
def database() -> str:
    """Its ledger is a file of its own."""
    return SQLITE


def ledger_url(deployment: Deployment) -> str:
    (path,) = deployment.folder.glob(".rollbook/demo-*/ledger.sqlite3")
    return f"sqlite:///{path}"


async def begun(demo: Started, deployment: Deployment) -> None:
    """Rollouts are running."""
    await until(lambda: demo.ended or "rollouts at http" in demo.output, what="the demo's server is up")
    await deployment.runners()
    assert not demo.ended, demo.output


async def nothing_left(deployment: Deployment) -> None:
    await until(lambda: not deployment.pids(), what="all processes have ended")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, str]]:
    """A demo without a terminal that ended well, and what it wrote."""
    deployment = Deployment(tmp_path_factory.mktemp("demo"))
    demo = deployment.start("demo", *DEMO)
    try:
        assert asyncio.run(demo.end()) == 0, demo.output
        assert deployment.pids() == []
        yield deployment, demo.output
    finally:
        deployment.close()


def test_demo_shows_rewards_durations_ledger_and_queries_without_a_terminal(finished: tuple[Deployment, str]) -> None:
    deployment, output = finished
    assert "\x1b" not in output and "\r" not in output
    assert "40 of 40 rollouts are done" in output
    for part in ("Rewards", "Durations", "Ledger", "Two queries", "FROM rollout_timeline", "Next", "Done in"):
        assert part in output
    assert ledger_url(deployment).removeprefix(f"sqlite:///{deployment.folder}/") in output


def test_demo_leaves_a_whole_ledger_with_right_and_wrong_answers(finished: tuple[Deployment, str]) -> None:
    url = ledger_url(finished[0])
    assert rows(url, "SELECT status, count(*) FROM rollouts GROUP BY status") == [("success", 40)]
    rewards: dict[float, int] = dict(rows(url, "SELECT reward, count(*) FROM reward_outcomes GROUP BY reward"))
    assert rewards.keys() == {0.0, 1.0}, "the policy makes mistakes, but not always"
    assert verify_replay(url) == []
    assert audit(url) == []


def test_policy_key_and_urls_are_nowhere_in_what_the_demo_leaves(finished: tuple[Deployment, str]) -> None:
    files = [path for path in finished[0].folder.rglob("*") if path.is_file()]
    assert any(path.name == "processes.log" for path in files)
    for path in files:
        content = path.read_bytes()
        assert b"/rollouts/row-" not in content, f"a chat URL is in {path}"
        assert b"Bearer " not in content, f"a key is in {path}"


async def test_demo_draws_a_bar_on_a_terminal(deployment: Deployment) -> None:
    demo = deployment.start("terminal", *ON_A_TERMINAL, TERM="xterm", COLUMNS="80")
    assert await demo.end() == 0, demo.output
    assert deployment.pids() == []
    assert "\x1b[" in demo.output
    assert "40/40" in demo.output and "of 40 rollouts are done" not in demo.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_demo_stops_everything_and_says_where_the_ledger_is(
    deployment: Deployment, number: signal.Signals
) -> None:
    demo = deployment.launch("demo", *LAUNCHED_DEMO)
    await begun(demo, deployment)
    demo.send(number)
    assert await demo.end() == 130, demo.output
    await nothing_left(deployment)
    assert "Interrupted." in demo.output and "Traceback" not in demo.output
    assert audit(ledger_url(deployment)) == []


async def test_killed_demo_leaves_no_process(deployment: Deployment) -> None:
    demo = deployment.launch("demo", *LAUNCHED_DEMO)
    await begun(demo, deployment)
    demo.kill()
    await nothing_left(deployment)


async def test_demo_survives_the_death_of_its_runner(deployment: Deployment) -> None:
    demo = deployment.launch("demo", *LAUNCHED_DEMO)
    await begun(demo, deployment)
    deployment.kill(RUNNER_MODULE)
    assert await demo.end() == 0, demo.output
    url = ledger_url(deployment)
    assert rows(url, "SELECT status, count(*) FROM rollouts GROUP BY status") == [("success", 40)]
    assert deployment.pids() == []


async def test_folder_that_cannot_be_written_is_one_line(deployment: Deployment) -> None:
    Path(deployment.folder, ".rollbook").write_text("a file where a folder should be")
    demo = deployment.launch("demo", *LAUNCHED_DEMO)
    assert await demo.end() == 1
    assert demo.output.startswith("rollbook: ") and demo.output.count("\n") == 1
