"""Races over real processes: cancel against finish, claimer against claimer, and clients that give up in flight."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook_client import RolloutClient, RolloutHandle, RolloutResultResponse
from tests.support.processes import CHAT_URL, Deployment, until

SEEDS = 100
SHARED = 40


async def race(client: RolloutClient, folder: Path, seed: int) -> tuple[str, RolloutResultResponse]:
    """Let a running rollout finish and cancel it at about the same time; even seeds begin with the first."""
    chance = random.Random(seed)
    gate = folder / f"gate-{seed}"
    rollout_id = f"race-{seed}"
    handle = await client.run_rollout_async([], CHAT_URL, rollout_id, label="run 0", metadata={"until": str(gate)})
    await handle.wait_for_running()
    lead_sec = chance.uniform(0.0, 0.06)
    if seed % 2 == 0:
        gate.touch()
        await asyncio.sleep(lead_sec)  # what is drawn by lot here is the race itself
        answer = await client.cancel_rollout(rollout_id)
    else:
        cancelling = asyncio.create_task(client.cancel_rollout(rollout_id))
        await asyncio.sleep(lead_sec / 10)
        gate.touch()
        answer = await cancelling
    return answer.dispositions[rollout_id], await handle


async def test_cancel_and_finish_at_once_leave_one_end_and_tell_the_loser(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.api()
    deployment.scheduler()
    await deployment.answering()
    outcomes: list[tuple[str, RolloutResultResponse]] = []
    async with deployment.client() as client:
        for start in range(0, SEEDS, 20):
            seeds = range(start, min(start + 20, SEEDS))
            outcomes += await asyncio.gather(*(race(client, tmp_path, seed) for seed in seeds))
    for disposition, outcome in outcomes:
        cancellations = deployment.rows(
            "SELECT c.position < o.position FROM rollouts r JOIN outcomes o ON o.number = r.number"
            " JOIN cancellations c ON c.number = r.number WHERE r.rollout_id = ?",
            outcome.rollout_id,
        )
        if disposition == "not_found":
            # It came too late: the end was on disk, and nothing of the request is.
            assert outcome.status == "success"
            assert cancellations == []
        else:
            assert disposition == "cancelled_running"
            assert cancellations == [(1,)]
            if outcome.status == "cancelled":
                assert (outcome.err_message, outcome.err_category, outcome.sample) == ("cancelled", None, None)
            else:
                assert (outcome.status, outcome.sample and outcome.sample.reward) == ("success", 1.0)
    statuses = Counter(outcome.status for _, outcome in outcomes)
    assert statuses == deployment.statuses()
    deployment.check_ledger()


async def test_cancel_before_the_end_and_after_it(deployment: Deployment, tmp_path: Path) -> None:
    deployment.api()
    deployment.scheduler()
    await deployment.answering()
    async with deployment.client() as client:
        first = await client.run_rollout_async(
            [], CHAT_URL, "first", label="run 0", metadata={"until": str(tmp_path / "never")}
        )
        await first.wait_for_running()
        assert (await client.cancel_rollout("first")).dispositions == {"first": "cancelled_running"}
        assert (await first).status == "cancelled"
        assert (await client.cancel_rollout("first")).dispositions == {"first": "not_found"}

        second = await client.run_rollout([], CHAT_URL, "second", label="run 0", metadata={})
        assert (await client.cancel_rollout("second")).dispositions == {"second": "not_found"}
        assert second.status == "success"
    deployment.check_ledger()


async def test_two_schedulers_never_share_a_rollout(deployment: Deployment, tmp_path: Path) -> None:
    deployment.api()
    deployment.scheduler()
    deployment.scheduler()
    await deployment.answering()
    ready = "SELECT count(*) FROM members WHERE kind = 'scheduler' AND capacity > 0"
    await until(lambda: deployment.number(ready) == 2, what="two schedulers with runners")
    async with deployment.client() as client:
        for number in range(SHARED):
            # One at a time, so that both schedulers wake for the same one.
            (tmp_path / str(number)).mkdir()
            metadata = {"started": str(tmp_path / str(number))}
            outcome = await client.run_rollout([], CHAT_URL, f"r-{number}", label="run 1", metadata=metadata)
            assert outcome.sample is not None
            assert outcome.sample.reward == 1.0
    assert [sorted(path.name for path in (tmp_path / str(n)).iterdir()) for n in range(SHARED)] == [["1"]] * SHARED
    assert deployment.rows("SELECT attempt, outcome, count(*) FROM attempts GROUP BY 1, 2") == [
        (1, "completed", SHARED)
    ]
    deployment.check_ledger()


# In httpx's own pool every call looks at every other one, so 200 of them would mostly measure that.
@pytest.mark.parametrize(("pool", "calls"), [("own", 200), ("borrowed", 60)])
async def test_client_that_cancels_many_calls_in_flight_can_still_be_used(
    deployment: Deployment, tmp_path: Path, pool: str, calls: int
) -> None:
    deployment.api()
    deployment.scheduler(max_concurrent=calls)
    await deployment.answering()
    metadata: dict[str, Any] = {"until": str(tmp_path / "gate")}
    limits = httpx.Limits(max_connections=calls + 10)
    async with (
        httpx.AsyncClient(limits=limits, verify=False) as http,
        deployment.client(http_client=None if pool == "own" else http) as client,
    ):

        def admission(name: str) -> Coroutine[Any, Any, RolloutHandle]:
            return client.run_rollout_async([], CHAT_URL, name, label="run 0", metadata=metadata)

        # Some while they are admitted …
        admissions = [asyncio.create_task(admission(f"given-up-{number}")) for number in range(calls)]
        await until(lambda: deployment.admitted >= calls // 2, what="half of the admissions")
        for task in admissions:
            task.cancel()
        answers = await asyncio.gather(*admissions, return_exceptions=True)
        handles = [answer for answer in answers if isinstance(answer, RolloutHandle)]
        # … and some while their polls are parked.
        handles += await asyncio.gather(*(admission(f"parked-{number}") for number in range(calls)))
        renewed = (
            "SELECT count(DISTINCT e.number) FROM events e JOIN rollouts r ON r.number = e.number"
            " WHERE e.type = 'lease_renewed' AND r.rollout_id LIKE 'parked-%'"
        )
        await until(lambda: deployment.number(renewed) == calls, what="a parked poll of each")
        for handle in handles:
            handle.cancel()
        await asyncio.gather(*handles, return_exceptions=True)

        (tmp_path / "gate").touch()
        outcomes = await asyncio.gather(*(client.attach(handle.save()) for handle in handles))
        later = await asyncio.gather(*(admission(f"later-{number}") for number in range(calls)))
        outcomes += await asyncio.gather(*later)
    assert {(outcome.status, outcome.sample and outcome.sample.reward) for outcome in outcomes} == {("success", 1.0)}
