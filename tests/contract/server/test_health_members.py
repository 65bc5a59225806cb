"""Health: who serves, from which queues, in how many slots, and where admission is closed."""

from __future__ import annotations

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.liveness import host_name
from rollbook.server.health import Health, SchedulerHealth
from tests.contract.server.support import QUEUE, SCHEDULER, Api, serving

SECOND_US = 1_000_000


async def health(api: Api) -> Health:
    response = await api.http.get("/health")
    assert response.status_code == 200
    return msgspec.json.decode(response.content, type=Health)


def scheduler(member_id: str, *queues: str, capacity: int = 4) -> cmd.Register:
    return cmd.Register(
        member_id=member_id,
        kind="scheduler",
        host="worker-7 pid:[4026531836]",
        pid=1,
        dead_after_us=15 * SECOND_US,
        entrypoint="flow.py",
        queues=queues,
        capacity=capacity,
    )


async def test_a_scheduler_is_told_with_its_host_queues_and_slots(api: Api) -> None:
    await api.ledger.submit(scheduler(SCHEDULER, QUEUE, "second", capacity=3))
    await api.ledger.submit(cmd.Beat(SCHEDULER, accepting=False, capacity=2, trouble="claims: slow"))
    (told,) = (await health(api)).schedulers
    assert told == SchedulerHealth(
        member_id=SCHEDULER,
        host="worker-7",
        beat_age_sec=told.beat_age_sec,
        accepting=False,
        trouble="claims: slow",
        entrypoint="flow.py",
        queues=(QUEUE, "second"),
        capacity=2,
        free=told.free,
    )


async def test_schedulers_are_listed_from_the_oldest_on(api: Api) -> None:
    for name in ("s-9", "s-1", "s-5"):
        await api.ledger.submit(scheduler(name, QUEUE, capacity=2))
    body = await health(api)
    assert [member.member_id for member in body.schedulers] == ["s-9", "s-1", "s-5"]
    assert body.concurrency.max_concurrent == 6


async def test_who_left_is_listed_no_more(api: Api) -> None:
    await api.ledger.submit(scheduler("s-1", QUEUE))
    await api.ledger.submit(scheduler("s-2", QUEUE))
    await api.ledger.submit(cmd.Leave("s-1"))
    assert [member.member_id for member in (await health(api)).schedulers] == ["s-2"]


async def test_a_scheduler_whose_beat_is_stale_is_listed_no_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.ledger.submit(scheduler("s-1", QUEUE))
    real = api.ledger.clock
    monkeypatch.setattr(api.ledger, "clock", lambda: real() + 16 * SECOND_US)
    body = await health(api)
    assert (body.status, body.schedulers) == ("no_scheduler", [])


async def test_live_apis_are_listed(database_url: str) -> None:
    async with serving(database_url, member=True) as api:
        (told,) = (await health(api)).apis
        assert told.accepting
        assert told.host == host_name().partition(" ")[0]
        assert 0 <= told.beat_age_sec < 15
