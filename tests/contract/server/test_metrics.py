"""Metrics: what Prometheus reads is right whichever process it asks, and costs no walk through old rollouts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger import vitals
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.urls import SQLITE, parse_url
from rollbook.metrics import looplag
from rollbook.server import meters, streams
from rollbook.server.app import build_app
from rollbook.server.service import ApiService
from rollbook.settings import ApiSettings
from tests.contract.server.support import LIMIT_SEC, QUEUE, SCHEDULER, Api, serving
from tests.support.outages import unwritable
from tests.support.scrapes import Scrape, documented_metrics
from tests.support.sql import shell

SECOND_US = 1_000_000


async def scrape(api: Api) -> Scrape:
    response = await api.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(response.text)


@asynccontextmanager
async def neighbour(database_url: str) -> AsyncIterator[Ledger]:
    """Another process's ledger."""
    ledger = await Ledger.open(database_url)
    try:
        yield ledger
    finally:
        await ledger.close()


def register() -> cmd.Register:
    return cmd.Register(
        member_id=SCHEDULER,
        kind="scheduler",
        host="worker-7 pid:[1]",
        pid=1,
        dead_after_us=15 * SECOND_US,
        entrypoint=QUEUE,
        queues=(QUEUE,),
        capacity=4,
    )


async def test_queues_are_told_with_their_depth_and_what_runs(api: Api) -> None:
    await api.admitted("r-1")
    await api.claim()
    await api.admitted("r-2")
    await api.admitted("r-3")
    found = await scrape(api)
    assert found.one("rollbook_queued_rollouts", queue=QUEUE) == 2
    assert found.one("rollbook_running_rollouts", queue=QUEUE) == 1


async def test_age_is_that_of_the_oldest_that_waits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        await api.admitted(f"r-{number}")
    waiting = await api.service.state("r-1")
    monkeypatch.setattr(api.ledger, "clock", lambda: waiting.queued_at + 90 * SECOND_US)
    assert (await scrape(api)).one("rollbook_oldest_queued_seconds", queue=QUEUE) == 90


async def test_a_rollout_that_came_back_to_its_queue_does_not_hide_an_older_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.admitted("r-1")
    await api.claim()
    await api.admitted("r-2")
    await api.ledger.submit(cmd.CloseAttempt("r-1", 1, SCHEDULER, outcome="released", reason="shut down"))
    older = await api.service.state("r-2")
    monkeypatch.setattr(api.ledger, "clock", lambda: older.queued_at + 60 * SECOND_US)
    assert (await scrape(api)).one("rollbook_oldest_queued_seconds", queue=QUEUE) == 60


async def test_an_empty_queue_of_this_api_is_told_before_its_first_rollout(api: Api) -> None:
    found = await scrape(api)
    assert found.one("rollbook_queued_rollouts", queue=QUEUE) == 0
    assert found.one("rollbook_oldest_queued_seconds", queue=QUEUE) == 0
    assert found.one("rollbook_rollouts_finished_total", queue=QUEUE, status="success") == 0
    assert found.one("rollbook_attempts_ended_total", queue=QUEUE, outcome="lost") == 0


async def test_live_schedulers_are_told_with_slots_and_beats(api: Api) -> None:
    await api.ledger.submit(register())
    found = await scrape(api)
    assert found.one("rollbook_schedulers") == 1
    assert found.one("rollbook_scheduler_slots", scheduler=SCHEDULER, host="worker-7") == 4
    assert found.one("rollbook_scheduler_accepting", scheduler=SCHEDULER) == 1
    assert 0 <= found.one("rollbook_scheduler_beat_age_seconds", scheduler=SCHEDULER) < 15


async def test_what_happens_is_counted_by_queue_status_and_category(api: Api) -> None:
    for name in ("won", "failed", "lost"):
        await api.admitted(name)
    await api.claim()
    await api.finish("won")
    await api.finish("failed", sample=None, status="failure", err_message="no", err_category="agent_error")
    await api.ledger.submit(cmd.CloseAttempt("lost", 1, SCHEDULER, outcome="lost", reason="its runner died"))
    await api.cancel(ids=["lost"])
    found = await scrape(api)
    assert found.one("rollbook_rollouts_admitted_total", queue=QUEUE) == 3
    assert found.one("rollbook_claims_total", queue=QUEUE) == 3
    assert found.one("rollbook_cancellation_requests_total", queue=QUEUE) == 1
    assert found.one("rollbook_rollouts_finished_total", status="success", category="") == 1
    assert found.one("rollbook_rollouts_finished_total", status="failure", category="agent_error") == 1
    assert found.one("rollbook_rollouts_finished_total", status="cancelled") == 1
    ended = {labels["outcome"]: value for labels, value in found.all("rollbook_attempts_ended_total")}
    assert ended == {"completed": 2, "lost": 1, "released": 0, "cancelled": 0}


async def test_expired_leases_are_counted(database_url: str) -> None:
    async with serving(database_url, member=True, result_wait_timeout_sec=0.01, polling_lease_timeout_sec=0.02) as api:
        await api.admitted()
        before = await api.seq()

        async def expired() -> bool:
            await api.ledger.submit(cmd.Beat(api_member_id, accepting=True))
            await api.ledger.submit(cmd.ExpireLeases())
            return await api.seq() > before

        api_member_id = (await api.http.get("/health")).json()["apis"][0]["member_id"]
        await api.until(expired)
        assert (await scrape(api)).one("rollbook_lease_expiries_total", queue=QUEUE) == 1


async def test_what_other_processes_write_counts_as_well(api: Api, database_url: str) -> None:
    await scrape(api)
    async with neighbour(database_url) as other:
        await other.submit(register())
        await api.admitted()
        await other.submit(cmd.Claim(SCHEDULER, (QUEUE,), 10))
        assert (await scrape(api)).one("rollbook_claims_total", queue=QUEUE) == 1


async def test_asking_again_counts_nothing_twice(api: Api) -> None:
    await api.admitted()
    scrapes = await asyncio.gather(*(scrape(api) for _ in range(4)))
    assert {found.one("rollbook_rollouts_admitted_total", queue=QUEUE) for found in scrapes} == {1}
    await api.admitted("r-2")
    assert (await scrape(api)).one("rollbook_rollouts_admitted_total", queue=QUEUE) == 2


async def test_counts_begin_at_zero_with_the_process(database_url: str) -> None:
    async with serving(database_url) as before:
        await before.admitted()
    async with serving(database_url) as api:
        found = await scrape(api)
        assert found.one("rollbook_rollouts_admitted_total", queue=QUEUE) == 0
        assert found.one("rollbook_ledger_events_total") == 1


async def test_a_process_that_is_asked_late_counts_only_the_last_events(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "LOOK_BACK_EVENTS", 2)
    monkeypatch.setattr(meters, "CHUNK_EVENTS", 1)
    for number in range(5):
        await api.admitted(f"r-{number}")
    assert (await scrape(api)).one("rollbook_rollouts_admitted_total", queue=QUEUE) == 2


async def test_events_are_counted_between_questions_once_metrics_were_asked_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "FOLLOW_SEC", 0.0)
    async with api.service.meters.running():
        await scrape(api)
        await api.admitted()

        async def counted() -> bool:
            return bool(api.service.meters.total("rollout_admitted", (1,))[QUEUE,])

        await api.until(counted)


async def test_appends_and_batches_are_measured(api: Api) -> None:
    await api.admitted()
    found = await scrape(api)
    assert found.one("rollbook_api_append_seconds_count") == 1
    assert found.one("rollbook_api_append_seconds_sum") > 0
    assert found.one("rollbook_api_batch_commands_bucket", le="1.0") == 1
    assert found.one("rollbook_api_append_seconds_bucket", le="+Inf") == 1


async def test_waking_is_measured_for_changes_of_status_only(api: Api) -> None:
    token = await api.admitted()
    await api.claim()
    await api.enter()

    async def woken() -> float:
        return (await scrape(api)).one("rollbook_api_wake_seconds_count")

    before = await woken()
    assert before == 2  # admitted, running: a claim changes no status
    await api.poll(token)
    await api.cancel(ids=["r-1"])
    assert await woken() == before
    await api.finish()
    assert await woken() == before + 1


async def test_parked_polls_and_open_streams_are_told(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    poll = asyncio.create_task(api.poll(token))
    frames = api.service.meters.streamed(
        streams.event_stream(
            api.ledger,
            api.service.pulse,
            after=0,
            open_to_all=lambda: api.service.waiting,
            outages=api.service.outages,
        )
    )
    await anext(frames)

    async def parked() -> bool:
        found = await scrape(api)
        return (found.one("rollbook_api_parked_polls"), found.one("rollbook_api_open_streams")) == (1, 1)

    await api.until(parked)
    await api.run()
    assert (await asyncio.wait_for(poll, LIMIT_SEC)).json()["status"] == "running"
    api.service.end_waits()
    async for _ in frames:
        pass
    found = await scrape(api)
    assert found.one("rollbook_api_parked_polls") == 0
    assert found.one("rollbook_api_open_streams") == 0


async def test_a_loop_that_is_late_is_measured(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looplag, "LAG_SEC", 0.0)

    async def felt() -> bool:
        return (await scrape(api)).one("rollbook_api_loop_lag_seconds_count") > 0

    async with api.service.meters.running():
        await api.until(felt)


async def test_failed_batches_are_counted(api: Api, database_url: str) -> None:
    with unwritable(database_url):
        assert (await api.admit()).status_code == 503
    assert (await scrape(api)).one("rollbook_api_failed_batches_total") == 1


async def test_a_ledger_that_cannot_be_read_leaves_the_process_own_metrics(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.admitted()

    async def away() -> int:
        raise LedgerUnavailable("the database is away")

    monkeypatch.setattr(api.ledger.reader, "last_position", away)
    found = await scrape(api)
    assert found.one("rollbook_ledger_reachable") == 0
    assert found.all("rollbook_queued_rollouts") == []
    assert found.one("rollbook_api_append_seconds_count") == 1


async def test_documented_metrics_are_those_that_are_told(api: Api) -> None:
    documented, _ = documented_metrics()
    assert documented == (await scrape(api)).ours


async def test_before_the_ledger_is_open_metrics_say_so() -> None:
    service = ApiService(None, ApiSettings(database_url="sqlite:///unused", queue="q"))
    transport = httpx.ASGITransport(cast(Any, build_app(service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=LIMIT_SEC) as http:
        found = Scrape((await http.get("/metrics")).text)
    assert found.one("rollbook_ledger_reachable") == 0


@pytest.mark.parametrize("statement", [vitals.QUEUES, meters.COUNTS], ids=["queues", "counts"])
def test_old_rollouts_and_events_are_not_walked_through(database_url: str, statement: str) -> None:
    steps = plan(database_url, statement)
    walked = [step for step in steps if re.search(r"\b(SCAN|Seq Scan on) (rollouts|events|attempt_ends|[era])\b", step)]
    assert steps
    assert not walked, steps


def plan(database_url: str, statement: str) -> list[str]:
    """How the database finds the rows, were there many: an empty table is always walked through."""
    with shell(database_url) as db:
        if parse_url(database_url).get_backend_name() == SQLITE:
            found = db.rows(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?"))
        else:
            db.rows("SET enable_seqscan = off")
            found = db.rows(f"EXPLAIN (COSTS off) {statement.replace('?', '1')}")
    return [str(row[-1]) for row in found]
