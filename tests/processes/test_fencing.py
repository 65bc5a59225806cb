"""A scheduler that was stopped while another took its rollout: what it says afterwards does not land."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rollbook_client import RolloutHandle, RolloutStatus
from tests.support.processes import CHAT_URL, RUNNER_MODULE, Deployment, Started, until


@asynccontextmanager
async def two_attempts(deployment: Deployment, folder: Path) -> AsyncIterator[tuple[RolloutHandle, Started]]:
    """A handle, and the stopped scheduler: the first attempt has ended in its runner, the second is under way."""
    deployment.api()
    stopped = deployment.scheduler()
    await deployment.answering()
    metadata: dict[str, Any] = {"started": str(folder), "until": str(folder / "{run}.go")}
    async with deployment.client() as client:
        handle = await client.run_rollout_async([], CHAT_URL, "r", label="run 2", metadata=metadata)
        await until((folder / "1").exists, what="the first attempt")
        await handle.wait_for_running()
        await deployment.stop_outside_of_writing(stopped)
        # Its runner was not stopped: the result lies in the pipe and waits for the scheduler.
        (folder / "1.go").touch()

        deployment.scheduler()
        await until((folder / "2").exists, what="the second attempt")
        assert (folder / "2").read_text() != (folder / "1").read_text()
        yield handle, stopped


def live_members(deployment: Deployment, process: Started) -> int:
    found: int = deployment.number(
        "SELECT count(*) FROM members WHERE kind = 'scheduler' AND stopped_at IS NULL AND pid = ?", process.pid
    )
    return found


async def continue_and_hear(deployment: Deployment, stopped: Started) -> None:
    """SIGCONT; returns once its late result was judged and it has registered anew."""
    stopped.send(signal.SIGCONT)
    await until(lambda: "the report of superseded attempt 1 is dropped" in stopped.output, what="the late result")
    await until(lambda: live_members(deployment, stopped), what="a new registration")
    assert "declared dead" in stopped.output


def assert_the_second_attempt_won(deployment: Deployment) -> None:
    assert deployment.rows("SELECT attempt, outcome FROM attempts ORDER BY attempt") == [(1, "lost"), (2, "completed")]
    first, second = deployment.rows("SELECT scheduler FROM attempts ORDER BY attempt")
    assert first != second
    reason: str = deployment.number("SELECT reason FROM attempts WHERE attempt = 1")
    assert reason == f"scheduler {first[0]} died while it ran this rollout"
    deployment.check_ledger()


async def test_late_result_is_refused_while_the_other_still_runs(deployment: Deployment, tmp_path: Path) -> None:
    async with two_attempts(deployment, tmp_path) as (handle, stopped):
        await continue_and_hear(deployment, stopped)
        assert deployment.statuses() == {"running": 1}
        (tmp_path / "2.go").touch()
        outcome = await handle
    assert outcome.sample is not None
    assert (outcome.sample.messages[-1]["content"], outcome.sample.reward) == ("run 2", 1.0)
    assert_the_second_attempt_won(deployment)


async def test_late_result_does_not_change_the_others_terminal_one(deployment: Deployment, tmp_path: Path) -> None:
    async with two_attempts(deployment, tmp_path) as (handle, stopped):
        (tmp_path / "2.go").touch()
        outcome = await handle
        end = deployment.rows("SELECT seq, head FROM rollouts")
        await continue_and_hear(deployment, stopped)
        async with deployment.client() as client:
            again = await client.attach(handle.save())
    assert outcome.sample is not None
    assert (outcome.sample.messages[-1]["content"], outcome.sample.reward) == ("run 2", 1.0)
    assert again == outcome
    assert deployment.rows("SELECT seq, head FROM rollouts") == end
    assert_the_second_attempt_won(deployment)


async def test_continued_scheduler_works_on_under_a_new_name(deployment: Deployment, tmp_path: Path) -> None:
    async with two_attempts(deployment, tmp_path) as (handle, stopped):
        other = deployment.started[-1]
        (tmp_path / "2.go").touch()
        await handle
        await continue_and_hear(deployment, stopped)
        assert await other.stop() == 0
        async with deployment.client() as client:
            outcome = await client.run_rollout([], CHAT_URL, "next", label="run 3", metadata={"started": str(tmp_path)})
    assert outcome.status is RolloutStatus.SUCCESS
    runner = int((tmp_path / "3").read_text())
    assert runner in deployment.pids(RUNNER_MODULE)
    assert f"PPid:\t{stopped.pid}\n" in Path(f"/proc/{runner}/status").read_text()
    deployment.check_ledger()
