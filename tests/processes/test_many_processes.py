"""Several APIs and schedulers over one ledger on PostgreSQL: killed, restarted in turn, on hosts with a wrong clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.ledger.urls import POSTGRES
from rollbook.supervisor import EX_CONFIG
from rollbook_client import RolloutClient, RolloutHandle, RolloutProtocolError, RolloutResultResponse
from tests.support.balancer import balanced
from tests.support.databases import NewLedger, empty_place
from tests.support.processes import (
    CHAT_URL,
    CHOSEN,
    QUEUE,
    Deployment,
    Started,
    deployed,
    folder_first,
    free_port,
    until,
    url_of,
)

READY = "SELECT count(*) FROM members WHERE kind = 'scheduler' AND stopped_at IS NULL AND capacity > 0"
FLOW = """
from rollbook import AgentWorkflow

class Named(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": "NAME"}]
"""
TIMES = ("--result-wait", "0.5", "--lease-timeout", "30")
# As in production: where nobody is to be taken for dead, a machine may be as busy as it likes.
PATIENT: dict[str, Any] = {"dead_after_sec": 15.0, "beat_lost_after_sec": 10.0}


@pytest.fixture
def many(new_ledger: NewLedger, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(POSTGRES, new_ledger, tmp_path) as deployment:
        yield deployment


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Deployment]:
    """A database with nothing in it yet."""
    with empty_place(POSTGRES, tmp_path) as url:
        deployment = Deployment(tmp_path, url)
        yield deployment
        deployment.close()


async def started_api(many: Deployment, port: int, *, queue: str = QUEUE) -> Started:
    """`rollbook serve --no-scheduler`, once it answers."""
    api = many.command("serve", "--no-scheduler", "--queue", queue, "--port", str(port), *TIMES)
    await until(lambda: api.ended or "listening on" in api.output, what="an API")
    assert not api.ended, api.output
    return api


async def started_scheduler(many: Deployment, entrypoint: str = str(CHOSEN), *options: str) -> Started:
    """`rollbook scheduler`, once it could run something."""
    scheduler = many.command("scheduler", entrypoint, *options)
    await until(lambda: scheduler.ended or "scheduler ready" in scheduler.output, what="a scheduler")
    assert not scheduler.ended, scheduler.output
    return scheduler


async def admit(client: RolloutClient, rollout_id: str, plan: dict[str, Any], **options: Any) -> RolloutHandle:
    metadata = {"text": rollout_id, **plan}
    return await client.run_rollout_async([], CHAT_URL, rollout_id, label=rollout_id, metadata=metadata, **options)


def assert_succeeded(outcome: RolloutResultResponse) -> None:
    assert outcome.sample is not None, outcome
    assert (outcome.status, outcome.sample.reward) == ("success", 1.0)
    assert outcome.sample.messages[-1]["content"] == outcome.rollout_id


def running_of(many: Deployment, scheduler: Started) -> int:
    """How many rollouts the ledger says that a scheduler's process runs."""
    found: int = many.number(
        "SELECT count(*) FROM rollouts r JOIN members m ON m.member_id = r.scheduler WHERE m.pid = ?", scheduler.pid
    )
    return found


async def test_work_of_a_killed_scheduler_is_taken_over_by_the_others(many: Deployment, tmp_path: Path) -> None:
    ports = free_port(), free_port()
    for port in ports:
        many.api(port=port)
    schedulers = [many.scheduler(dead_after_sec=5.0, beat_lost_after_sec=4.0) for _ in range(3)]
    await until(lambda: many.number(READY) == 3, what="three schedulers with runners")
    gate = tmp_path / "gate"
    with balanced(ports) as url:
        await many.answering(url)
        async with many.client(url) as client:
            handles = [await admit(client, f"r-{number}", {"until": str(gate)}) for number in range(30)]
            await asyncio.gather(*(handle.wait_for_running() for handle in handles))
            victim = max(schedulers, key=lambda scheduler: running_of(many, scheduler))
            others = [scheduler for scheduler in schedulers if scheduler is not victim]
            held = running_of(many, victim)
            assert 0 < held < len(handles)
            victim.kill()
            await until(lambda: sum(running_of(many, other) for other in others) == 30, what="the others run all")
            gate.touch()
            for outcome in await asyncio.gather(*handles):
                assert_succeeded(outcome)
    ((victim_id,),) = many.rows("SELECT member_id FROM members WHERE pid = ?", victim.pid)
    assert many.rows("SELECT attempt, outcome, reason, count(*) FROM attempts GROUP BY 1, 2, 3 ORDER BY 1, 2") == [
        (1, "completed", None, 30 - held),
        (1, "lost", f"scheduler {victim_id} died while it ran this rollout", held),
        (2, "completed", None, held),
    ]
    many.check_ledger()


class Load:
    """Trainers that have rollouts run, one after the other, until they are told to stop."""

    def __init__(self, client: RolloutClient, trainers: int = 3) -> None:
        self.outcomes: list[RolloutResultResponse] = []
        self._client = client
        self._stopped = False
        self._tasks = [asyncio.create_task(self._train(number)) for number in range(trainers)]

    async def stop(self) -> None:
        """What is under way is waited for."""
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def goes_on(self) -> None:
        """Return once rollouts that are admitted from now on have ended; a trainer that failed raises."""
        wanted = len(self.outcomes) + 2 * len(self._tasks)
        await until(lambda: len(self.outcomes) >= wanted or any(t.done() for t in self._tasks), what="more results")
        for task in self._tasks:
            if task.done():
                task.result()

    async def _train(self, trainer: int) -> None:
        number = 0
        while not self._stopped:
            number += 1
            handle = await self._admitted(f"r-{trainer}-{number}")
            self.outcomes.append(await handle)

    async def _admitted(self, rollout_id: str) -> RolloutHandle:
        """Admit it, again where an API ended under the request: what is admitted twice under a key is admitted once."""
        while True:
            try:
                return await admit(self._client, rollout_id, {"sleep_sec": 0.2}, idempotency_key=rollout_id)
            except httpx.TransportError:
                continue
            except RolloutProtocolError as error:
                if error.status_code != 503:
                    raise


async def test_restarting_all_in_turn_under_load_loses_and_repeats_nothing(many: Deployment) -> None:
    ports = [free_port(), free_port()]
    apis = await asyncio.gather(*(started_api(many, port) for port in ports))
    schedulers = await asyncio.gather(*(started_scheduler(many) for _ in range(3)))
    with balanced(ports) as url:
        # A client without a limit of its own: on a busy machine so many starts and ends take their time.
        async with RolloutClient(url=url) as client:
            load = Load(client)
            await load.goes_on()
            for scheduler in schedulers:
                assert await scheduler.stop() == 0, scheduler.output
                await started_scheduler(many)
                await load.goes_on()
            for api, port in zip(apis, ports, strict=True):
                assert await api.stop() == 0, api.output
                await started_api(many, port)
                await load.goes_on()
            await load.stop()
    for outcome in load.outcomes:
        assert_succeeded(outcome)
    count = len({outcome.rollout_id for outcome in load.outcomes})
    assert count == len(load.outcomes)
    assert many.statuses() == {"success": count}
    # What a scheduler could not end before it left was given back, and is no attempt that counts.
    assert many.rows("SELECT DISTINCT attempts_counted FROM rollouts") == [(1,)]
    outcomes = dict(many.rows("SELECT outcome, count(*) FROM attempts WHERE outcome <> 'released' GROUP BY outcome"))
    assert outcomes == {"completed": count}
    many.check_ledger()


async def test_entrypoints_serve_different_queues_of_one_new_ledger(new: Deployment) -> None:
    for refused in (new.command("scheduler", str(CHOSEN)), new.command("serve", str(CHOSEN), "--port", "0")):
        assert await refused.end() == 1
        assert "make one with `rollbook db upgrade`" in refused.output
    upgrade = new.command("db", "upgrade")
    assert await upgrade.end() == 0, upgrade.output

    names = ("alpha", "beta")
    ports = {name: free_port() for name in names}
    for name in names:
        (new.folder / f"{name}.py").write_text(FLOW.replace("NAME", name))
    await asyncio.gather(*(started_api(new, ports[name], queue=name) for name in names))
    await asyncio.gather(*(started_scheduler(new, f"{name}.py") for name in names))

    intruder = new.command("scheduler", "beta.py", "--queue", "alpha")
    assert await intruder.end() == EX_CONFIG
    assert "alpha" in intruder.output

    handles: list[RolloutHandle] = []
    for name in names:
        async with new.client(url_of(ports[name])) as client:
            handles = [
                await client.run_rollout_async([], CHAT_URL, f"{name}-{number}", grade=False) for number in range(5)
            ]
            for outcome in await asyncio.gather(*handles):
                assert outcome.sample is not None
                assert outcome.sample.messages == [{"role": "assistant", "content": name}]
    async with new.client(url_of(ports["alpha"])) as client:
        # Any API tells of any rollout of the ledger.
        assert (await client.attach(handles[0].save())).status == "success"
    served = new.rows(
        "SELECT DISTINCT r.queue, m.entrypoint FROM rollouts r JOIN attempts a ON a.rollout_id ="
        " r.rollout_id JOIN members m ON m.member_id = a.scheduler ORDER BY 1"
    )
    assert served == [("alpha", "alpha.py"), ("beta", "beta.py")]
    new.check_ledger()


async def test_rollout_that_kills_its_runner_each_time_fails_and_the_others_finish(many: Deployment) -> None:
    many.api(max_attempts=3)
    for _ in range(3):
        many.scheduler(**PATIENT)
    await until(lambda: many.number(READY) == 3, what="three schedulers with runners")
    await many.answering()
    async with many.client() as client:
        before = [await admit(client, f"before-{number}", {"sleep_sec": 0.5}) for number in range(12)]
        deadly = await admit(client, "deadly", {"exit": 7})
        after = [await admit(client, f"after-{number}", {"sleep_sec": 0.5}) for number in range(12)]
        ended = await deadly
        for outcome in await asyncio.gather(*before, *after):
            assert_succeeded(outcome)
    reason = "its runner process exited with code 7 while it ran this rollout's code"
    assert (ended.status, ended.err_category, ended.sample) == ("failure", "internal_error", None)
    assert ended.err_message == f"{reason}; the rollout lost all 3 of its attempts"
    attempts = "SELECT outcome, reason FROM attempts WHERE rollout_id = ? ORDER BY attempt"
    assert many.rows(attempts, "deadly") == [("lost", reason)] * 3
    assert many.rows("SELECT DISTINCT attempts_counted FROM rollouts WHERE rollout_id <> 'deadly'") == [(1,)]
    many.check_ledger()


AHEAD_SEC = 600
TOLERANCE_US = 10_000_000
"""Far less than the clock is wrong, and more than anything takes here."""


@pytest.mark.parametrize("ahead_sec", [AHEAD_SEC, -AHEAD_SEC], ids=["ahead", "behind"])
async def test_host_with_a_wrong_clock_loses_and_steals_nothing(
    many: Deployment, tmp_path: Path, ahead_sec: int
) -> None:
    wrong = {"TEST_CLOCK_AHEAD_SEC": str(ahead_sec), "PYTHONPATH": folder_first("wrong_clock")}
    clock = many.start("clock", "-c", "import time; print(time.time_ns() // 1000)", **wrong)
    assert await clock.end() == 0, clock.output
    now: int = many.number("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert abs(int(clock.output) - now - ahead_sec * 1_000_000) < TOLERANCE_US

    # Each host has an API and a scheduler; leases are short, so that a wrong judgement would be made often.
    leases: dict[str, Any] = {"result_wait_timeout_sec": 0.5, "polling_lease_timeout_sec": 8.0}
    ports = [free_port(), free_port()]
    for port, variables in zip(ports, ({}, wrong), strict=True):
        many.api(port=port, variables=variables, **leases)
        many.scheduler(variables=variables, **PATIENT)
    await until(lambda: many.number(READY) == 2, what="two schedulers with runners")
    gate = tmp_path / "gate"
    with balanced(ports) as url:
        await many.answering(url)
        async with many.client(url) as client:
            plan = {"until": str(gate)}
            handles = [await admit(client, f"r-{number}", plan, agent_timeout_sec=60.0) for number in range(24)]
            await asyncio.gather(*(handle.wait_for_running() for handle in handles))
            left = await admit(client, "left", plan)
            await left.wait_for_running()
            left.cancel()  # nobody polls it any more
            over = "SELECT count(*) FROM rollouts WHERE rollout_id = 'left' AND finished_at > lease_expires_at"
            await until(lambda: many.number(over) == 1, what="the end of the lease that nobody renews")
            gate.touch()
            for outcome in await asyncio.gather(*handles):
                assert_succeeded(outcome)

    kept = "rollout_id LIKE 'r-%'"
    assert many.rows(f"SELECT attempt, outcome, count(*) FROM attempts WHERE {kept} GROUP BY 1, 2") == [
        (1, "completed", 24)
    ]
    assert len(many.rows(f"SELECT DISTINCT scheduler FROM attempts WHERE {kept}")) == 2
    assert many.rows("SELECT status, err_category FROM reward_outcomes WHERE rollout_id = 'left'") == [
        ("failure", "lease_expired")
    ]
    # Nobody was taken for dead, and no lease had to be extended.
    assert many.rows("SELECT kind, count(*) FROM members WHERE stopped_at IS NULL GROUP BY kind ORDER BY kind") == [
        ("api", 2),
        ("scheduler", 2),
    ]
    assert many.number("SELECT count(*) FROM members") == 4
    assert many.number("SELECT count(*) FROM events WHERE type = 'lease_extended'") == 0
    spans = many.rows(
        "SELECT s.stage, s.started_at, s.ended_at, r.admitted_at, r.finished_at FROM stage_spans s"
        " JOIN rollouts r ON r.number = s.number"
    )
    assert {span[0] for span in spans} >= {"queue", "agent", "grading"}
    for stage, started_at, ended_at, admitted_at, finished_at in spans:
        assert admitted_at - TOLERANCE_US < started_at <= ended_at < finished_at + TOLERANCE_US, stage
    many.check_ledger()
