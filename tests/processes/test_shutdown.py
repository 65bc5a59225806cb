"""SIGTERM: what runs is released or cancelled, parked polls end, the exit code is 0, and no process is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook_client import POLLING_LEASE_HEADER, RolloutHandle
from tests.support.processes import CHAT_URL, LIMIT_SEC, Deployment, until

LONG_WAIT_SEC = 50.0
SHORT_DRAIN = """
from functools import partial
from rollbook.cli import main, processes
processes.SchedulerSettings = partial(processes.SchedulerSettings, drain_sec=2.0)
main()
"""


@pytest.fixture
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("another"))
    yield deployment
    deployment.close()


async def start_running(deployment: Deployment, folder: Path) -> RolloutHandle:
    """A rollout that runs until its gate opens, as good as polled by nobody."""
    async with deployment.client() as client:
        metadata: dict[str, Any] = {"started": str(folder), "until": str(folder / "gate")}
        handle = await client.run_rollout_async([], CHAT_URL, "r", label="run 2", metadata=metadata)
        await until((folder / "1").exists, what="the first attempt")
        await until(lambda: deployment.statuses() == {"running": 1}, what="a running rollout")
        handle.cancel()
        await asyncio.gather(handle, return_exceptions=True)
    return handle


async def attached(deployment: Deployment, handle: RolloutHandle) -> Any:
    async with deployment.client() as client:
        return await client.attach(handle.save())


async def release_and_finish_after_a_restart(deployment: Deployment, folder: Path) -> None:
    serve = deployment.serve(program=("-c", SHORT_DRAIN))
    await deployment.answering()
    handle = await start_running(deployment, folder)

    assert await serve.stop() == 0
    assert deployment.pids() == []
    assert deployment.rows("SELECT status, attempt, attempts_counted FROM rollouts") == [("queued", 1, 0)]
    assert deployment.rows("SELECT outcome, reason FROM attempts") == [("released", "the scheduler was shut down")]

    (folder / "gate").touch()
    deployment.serve()
    await deployment.answering()
    outcome = await attached(deployment, handle)
    assert (outcome.status, outcome.sample.reward) == ("success", 1.0)
    assert deployment.rows("SELECT attempt, attempts_counted FROM rollouts") == [(2, 1)]
    deployment.check_ledger()


async def cancel_for_good(deployment: Deployment, folder: Path) -> None:
    serve = deployment.serve("--on-shutdown", "cancel", program=("-c", SHORT_DRAIN))
    await deployment.answering()
    handle = await start_running(deployment, folder)

    assert await serve.stop() == 0
    assert deployment.pids() == []
    assert deployment.statuses() == {"cancelled": 1}
    assert deployment.rows("SELECT requested_by FROM cancellation_log") == [("shutdown",)]

    deployment.serve()
    await deployment.answering()
    outcome = await attached(deployment, handle)
    assert (outcome.status, outcome.err_message, outcome.sample) == ("cancelled", "cancelled", None)
    deployment.check_ledger()


async def test_serve_releases_what_runs_or_cancels_it_where_it_was_told_to(
    deployment: Deployment, another: Deployment, tmp_path: Path
) -> None:
    # Both at once: each waits for its rollout, in vain, for as long as `serve` does.
    folders = tmp_path / "released", tmp_path / "cancelled"
    for folder in folders:
        folder.mkdir()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(release_and_finish_after_a_restart(deployment, folders[0]))
        tasks.create_task(cancel_for_good(another, folders[1]))


async def test_what_ends_within_the_drain_time_ends_as_ever(deployment: Deployment, tmp_path: Path) -> None:
    serve = deployment.serve()
    await deployment.answering()
    handle = await start_running(deployment, tmp_path)
    serve.send(signal.SIGTERM)
    refusing = "SELECT count(*) FROM members WHERE kind = 'api' AND stopped_at IS NULL"
    await until(lambda: deployment.number(refusing) == 0, what="the end of the API")
    (tmp_path / "gate").touch()
    assert await serve.end() == 0
    assert deployment.statuses() == {"success": 1}
    assert deployment.rows("SELECT outcome FROM attempts") == [("completed",)]
    assert deployment.pids() == []
    assert handle.done()


async def test_parked_polls_end_with_the_status_as_it_is(deployment: Deployment) -> None:
    api = deployment.api(result_wait_timeout_sec=LONG_WAIT_SEC, polling_lease_timeout_sec=2 * LONG_WAIT_SEC)
    await deployment.answering()
    async with httpx.AsyncClient(base_url=deployment.url, timeout=LIMIT_SEC, verify=False) as http:
        body = {"rollout_id": "r", "initial_messages": [], "chat_completions_url": CHAT_URL}
        token = (await http.post("/rollout", json=body)).json()["polling_lease_token"]
        polls = [
            asyncio.create_task(http.get("/rollout/r/result", headers={POLLING_LEASE_HEADER: token})) for _ in range(20)
        ]
        renewals = "SELECT count(*) FROM events WHERE type = 'lease_renewed'"
        await until(lambda: deployment.number(renewals) == len(polls), what="parked polls")
        assert await api.stop() == 0
        answers = await asyncio.gather(*polls)
    assert {(answer.status_code, answer.json()["status"]) for answer in answers} == {(200, "queued")}
    assert deployment.pids() == []
    deployment.check_ledger()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminate", "interrupt"])
async def test_scheduler_ends_while_a_workflow_blocks_its_runner(
    deployment: Deployment, number: signal.Signals
) -> None:
    deployment.api()
    scheduler = deployment.scheduler(drain_sec=0.2, force_sec=0.5)
    await deployment.answering()
    async with deployment.client() as client:
        handle = await client.run_rollout_async([], CHAT_URL, "r", label="x", metadata={"block_sec": 3600})
        await handle.wait_for_running()
        scheduler.send(number)
        assert await scheduler.end() == 0
        handle.cancel()
    assert deployment.rows("SELECT outcome FROM attempts") == [("released",)]
    assert deployment.statuses() == {"queued": 1}
    deployment.check_ledger()


async def test_nothing_outlives_a_killed_serve(deployment: Deployment, tmp_path: Path) -> None:
    serve = deployment.serve("--runners", "2")
    await deployment.answering()
    await deployment.runners(2)
    await start_running(deployment, tmp_path)
    serve.kill()
    await until(lambda: deployment.pids() == [], what="the end of all processes")
