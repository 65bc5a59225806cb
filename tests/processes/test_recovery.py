"""Whatever is killed in the middle of many rollouts: each of them ends once, under its old lease token."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.ledger.clock import host_clock_us
from rollbook_client import RolloutClient, RolloutHandle, RolloutResultResponse
from tests.support.processes import API_MODULE, CHAT_URL, RUNNER_MODULE, SCHEDULER_MODULE, Deployment, until

ROLLOUTS = 200
WAIT_SEC = 1.0
LEASE_SEC = 4.0
SHORT_LEASE: dict[str, Any] = {"result_wait_timeout_sec": WAIT_SEC, "polling_lease_timeout_sec": LEASE_SEC}


async def admit(client: RolloutClient, rollout_id: str) -> RolloutHandle:
    prompt = [{"role": "user", "content": "work"}]
    metadata = {"sleep_sec": 0.25, "text": rollout_id}
    return await client.run_rollout_async(prompt, CHAT_URL, rollout_id, label=rollout_id, metadata=metadata)


async def admit_all(deployment: Deployment) -> list[bytes]:
    """The admissions, written down; nobody polls them any more."""
    async with deployment.client() as client:
        handles = await asyncio.gather(*(admit(client, f"r-{number}") for number in range(ROLLOUTS)))
        saved = [handle.save() for handle in handles]
        await stop_polling(handles)
    return saved


async def stop_polling(handles: list[RolloutHandle]) -> None:
    for handle in handles:
        handle.cancel()
    await asyncio.gather(*handles, return_exceptions=True)


async def results(deployment: Deployment, saved: list[bytes]) -> list[RolloutResultResponse]:
    async with deployment.client() as client:
        return await asyncio.gather(*(client.attach(each) for each in saved))


async def in_the_middle(deployment: Deployment) -> None:
    # One statement, thus one moment: between two batches of finished rollouts nothing may be running.
    middle = f"""
        SELECT count(*) FROM rollouts WHERE scheduler IS NOT NULL
          AND (SELECT count(*) FROM rollouts WHERE finished_at IS NOT NULL) >= {ROLLOUTS // 8}
    """
    await until(lambda: deployment.number(middle) > 0, what="an eighth finished and others running")
    assert deployment.finished < ROLLOUTS


def assert_all_succeeded(outcomes: list[RolloutResultResponse]) -> None:
    assert {(outcome.status, outcome.sample and outcome.sample.reward) for outcome in outcomes} == {("success", 1.0)}
    assert all(
        outcome.sample is not None and outcome.sample.messages[-1]["content"] == outcome.rollout_id
        for outcome in outcomes
    )


def start(deployment: Deployment, names: tuple[str, ...]) -> None:
    for name in names:
        match name:
            case "api":
                deployment.api(**SHORT_LEASE)
            case "scheduler":
                deployment.scheduler()
            case "serve":
                deployment.serve("--result-wait", str(WAIT_SEC), "--lease-timeout", str(LEASE_SEC))
            case "embedded":
                deployment.embedded(**SHORT_LEASE)


APART = ("api", "scheduler")


@pytest.mark.parametrize(
    ("shape", "victim", "restart"),
    [
        pytest.param(APART, API_MODULE, ("api",), id="api"),
        pytest.param(APART, SCHEDULER_MODULE, ("scheduler",), id="scheduler"),
        pytest.param(APART, RUNNER_MODULE, (), id="runner"),
        pytest.param(APART, "", APART, id="everything"),
        pytest.param(("serve",), "", ("serve",), id="everything of serve"),
        pytest.param(("embedded",), "", ("embedded",), id="embedded server"),
    ],
)
async def test_every_rollout_ends_once_when_processes_are_killed_in_the_middle(
    deployment: Deployment, shape: tuple[str, ...], victim: str, restart: tuple[str, ...]
) -> None:
    start(deployment, shape)
    await deployment.answering()
    saved = await admit_all(deployment)
    await in_the_middle(deployment)

    deployment.kill(victim)
    start(deployment, restart)
    await deployment.answering()

    assert_all_succeeded(await results(deployment, saved))
    assert deployment.statuses() == {"success": ROLLOUTS}
    deployment.check_ledger()


async def test_lease_tokens_work_after_an_outage_of_two_lease_timeouts(deployment: Deployment) -> None:
    deployment.api(**SHORT_LEASE)
    deployment.scheduler()
    await deployment.answering()
    saved = await admit_all(deployment)
    await in_the_middle(deployment)

    deployment.kill()
    timeout_us = int(LEASE_SEC * 1_000_000)
    last_us: int = deployment.number("SELECT max(lease_expires_at) FROM rollouts")
    await until(lambda: host_clock_us() > last_us + timeout_us, what="two lease timeouts after the last renewal")
    # The scheduler first: its sweeps must not judge leases before an API could renew them.
    deployment.scheduler()
    await deployment.runners()
    deployment.api(**SHORT_LEASE)
    await deployment.answering()

    assert_all_succeeded(await results(deployment, saved))
    assert deployment.number("SELECT count(*) FROM events WHERE type = 'lease_extended'") > 0
    deployment.check_ledger()


async def test_admission_under_way_when_the_api_is_killed_is_whole_or_absent(deployment: Deployment) -> None:
    deployment.api(**SHORT_LEASE)
    await deployment.answering()
    async with deployment.client() as client:
        admissions = [asyncio.create_task(admit(client, f"r-{number}")) for number in range(ROLLOUTS)]
        await until(lambda: deployment.admitted > 0, what="a first admission")
        deployment.kill(API_MODULE)
        answers = await asyncio.gather(*admissions, return_exceptions=True)
        handles = [answer for answer in answers if isinstance(answer, RolloutHandle)]
        assert all(isinstance(answer, (RolloutHandle, httpx.TransportError)) for answer in answers)
        saved = [handle.save() for handle in handles]
        await stop_polling(handles)

    deployment.api(**SHORT_LEASE)
    deployment.scheduler()
    await deployment.answering()

    assert_all_succeeded(await results(deployment, saved))
    # What was admitted without its answer arriving is nobody's, and ends with its lease at the latest.
    await until(lambda: deployment.finished == deployment.admitted, what="the end of all rollouts")
    assert deployment.admitted >= len(handles)
    deployment.check_ledger()


async def test_trainer_under_way_does_not_notice_that_the_api_of_serve_was_killed(deployment: Deployment) -> None:
    deployment.serve("--result-wait", "1", "--lease-timeout", "30")
    before = await deployment.answering()
    async with deployment.client() as client:
        handles = await asyncio.gather(*(admit(client, f"r-{number}") for number in range(ROLLOUTS)))
        await in_the_middle(deployment)
        deployment.kill(API_MODULE)
        assert_all_succeeded(await asyncio.gather(*handles))
        assert (await client.health())["process_id"] != before["process_id"]
    deployment.check_ledger()


async def test_parked_poll_outlives_a_killed_runner(deployment: Deployment, tmp_path: Path) -> None:
    deployment.api()
    scheduler = deployment.scheduler()
    await deployment.answering()
    metadata: dict[str, Any] = {"started": str(tmp_path), "until": str(tmp_path / "{run}.go")}
    (tmp_path / "2.go").touch()
    async with deployment.client() as client:
        handle = await client.run_rollout_async([], CHAT_URL, "r", label="run 2", metadata=metadata)
        runner = int(await until(lambda: _text(tmp_path / "1"), what="the first attempt"))
        os.kill(runner, signal.SIGKILL)
        outcome = await handle
    assert outcome.sample is not None
    assert outcome.sample.reward == 1.0
    assert not scheduler.ended
    lost, completed = deployment.rows("SELECT attempt, outcome, reason FROM attempt_ends ORDER BY attempt")
    assert lost[:2] == (1, "lost")
    # It goes on where the runner was within the rollout's code at that moment.
    assert lost[2].startswith("its runner process was killed by SIGKILL (the kernel does that when memory runs out)")
    assert completed == (2, "completed", None)
    deployment.check_ledger()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
