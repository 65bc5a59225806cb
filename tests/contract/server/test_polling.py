"""Long polls: renewal, waking, results, retention."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from rollbook.ledger import commands as cmd
from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.support import LIMIT_SEC, SCHEDULER, Api, serving

KEYS = {"rollout_id", "status", "sample", "err_message", "err_category"}


async def parked(api: Api, token: str, rollout_id: str = "r-1") -> asyncio.Task[Any]:
    """A poll whose renewal is on disk, so that it now waits."""
    before = await api.seq(rollout_id)
    task = asyncio.create_task(api.poll(token, rollout_id))

    async def renewed() -> bool:
        return await api.seq(rollout_id) > before

    await api.until(renewed)
    return task


async def test_poll_of_a_waiting_rollout_tells_its_status_when_the_wait_is_over(api: Api) -> None:
    response = await api.poll(await api.admitted())
    assert response.json() == {
        "rollout_id": "r-1",
        "status": "queued",
        "sample": None,
        "err_message": None,
        "err_category": None,
    }


async def test_poll_renews_the_lease_once(api: Api) -> None:
    token = await api.admitted()
    before = (await api.service.state("r-1")).lease_expires_at
    await api.poll(token)
    assert (await api.service.state("r-1")).lease_expires_at > before
    assert await api.event_types() == ["rollout_admitted", "lease_renewed"]


async def test_refused_poll_renews_nothing(api: Api) -> None:
    await api.admitted()
    assert (await api.poll("wrong")).status_code == 403
    assert await api.event_types() == ["rollout_admitted"]


async def test_every_change_of_status_wakes_the_poll(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    seen = []
    await api.claim()
    for change in (api.enter(), api.enter(phase="grading"), api.finish()):
        poll = await parked(api, token)
        await change
        seen.append((await asyncio.wait_for(poll, LIMIT_SEC)).json()["status"])
    assert seen == ["running", "grading", "success"]


async def test_several_polls_at_once_are_all_woken(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    polls = [await parked(api, token) for _ in range(5)]
    await api.run()
    bodies = [(await asyncio.wait_for(poll, LIMIT_SEC)).json() for poll in polls]
    assert {body["status"] for body in bodies} <= {"running", "success"}


async def test_poll_is_not_woken_by_the_renewals_of_others(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    first = await parked(api, token)
    second = await parked(api, token)
    await api.admitted("r-2")
    assert not first.done()
    api.service.end_waits()
    assert {(await poll).json()["status"] for poll in (first, second)} == {"queued"}


async def test_finished_rollout_is_answered_at_once_with_its_sample_as_stored(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    await api.run()
    response = await api.poll(token)
    assert set(response.json()) == KEYS
    assert response.json() == {
        "rollout_id": "r-1",
        "status": "success",
        "sample": {
            "messages": [{"role": "assistant", "content": "42"}],
            "label": "42",
            "reward": 1.0,
            "remove_sample": False,
            "metrics": {},
            "extra_fields": {},
        },
        "err_message": None,
        "err_category": None,
    }
    assert "lease_renewed" not in await api.event_types()


async def test_failure_tells_message_and_category(waiting_api: Api) -> None:
    token = await waiting_api.admitted()
    await waiting_api.run(status="failure", sample=None, err_message="boom", err_category="agent_error")
    body = (await waiting_api.poll(token)).json()
    assert (body["status"], body["sample"]) == ("failure", None)
    assert (body["err_message"], body["err_category"]) == ("boom", "agent_error")


async def test_result_needs_the_right_token_but_no_live_lease(database_url: str) -> None:
    async with serving(database_url, result_wait_timeout_sec=0.001, polling_lease_timeout_sec=0.002) as api:
        token = await api.admitted()
        await api.admitted("r-2")
        await api.ledger.submit(cmd.Cancel(requested_by="test", ids=("r-1",)))
        first = (await api.poll(token)).json()
        assert first["status"] in ("cancelled", "failure")
        assert (await api.poll(token)).json() == first
        assert (await api.poll("wrong")).status_code == 403


async def test_poll_after_the_deadline_tells_that_the_lease_expired(database_url: str) -> None:
    async with serving(
        database_url, member=True, result_wait_timeout_sec=0.0001, polling_lease_timeout_sec=0.0002
    ) as api:
        token = await api.admitted()
        async with asyncio.timeout(LIMIT_SEC):
            while (body := (await api.poll(token)).json())["status"] == "queued":
                pass
        assert body == {
            "rollout_id": "r-1",
            "status": "failure",
            "sample": None,
            "err_message": "polling lease expired",
            "err_category": "lease_expired",
        }


async def test_client_that_goes_away_cancels_nothing_and_its_renewal_stands(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    poll = await parked(api, token)
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    assert await api.event_types() == ["rollout_admitted", "lease_renewed"]
    await api.run()
    assert (await api.poll(token)).json()["status"] == "success"


async def test_ending_waits_answers_parked_polls_and_lets_no_later_one_wait(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    polls = [await parked(api, token) for _ in range(3)]
    api.service.end_waits()
    for poll in polls:
        assert (await asyncio.wait_for(poll, LIMIT_SEC)).json()["status"] == "queued"
    assert (await asyncio.wait_for(api.poll(token), LIMIT_SEC)).json()["status"] == "queued"


async def test_result_is_forgotten_after_its_retention_but_the_id_stays_taken(database_url: str) -> None:
    async with serving(database_url) as api:
        token = await api.admitted()
        await api.run()
        assert (await api.poll(token)).status_code == 200
    async with serving(database_url, result_retention_sec=0.0) as api:
        assert (await api.poll(token)).json() == {"detail": "unknown rollout_id"}
        assert (await api.poll("wrong")).status_code == 404
        assert (await api.http.get("/rollout/r-1/status")).status_code == 404
        assert (await api.admit()).status_code == 409
        assert (await api.http.get("/rollout/r-1/events")).status_code == 200


async def test_poll_that_waits_for_the_end_is_told_the_result_however_short_the_retention(database_url: str) -> None:
    async with serving(
        database_url, result_retention_sec=0.0, result_wait_timeout_sec=500.0, polling_lease_timeout_sec=1_000.0
    ) as api:
        token = await api.admitted()
        await api.claim()
        await api.enter()
        poll = await parked(api, token)
        await api.finish()
        assert (await asyncio.wait_for(poll, LIMIT_SEC)).json()["status"] == "success"


@pytest.mark.parametrize("rollout_id", ["a?b", "a b", "a%2Fb", "a#b", "ü☃", "cancel", "result", "%", "a;b=c", "..."])
async def test_any_legal_id_is_found_by_its_percent_encoded_path(api: Api, rollout_id: str) -> None:
    token = await api.admitted(rollout_id)
    path = f"/rollout/{quote(rollout_id, safe='')}"
    response = await api.http.get(f"{path}/result", headers={POLLING_LEASE_HEADER: token})
    assert response.json()["rollout_id"] == rollout_id
    assert (await api.http.get(f"{path}/status")).json()["rollout_id"] == rollout_id
    assert (await api.http.get(f"{path}/events")).json()["events"][0]["rollout_id"] == rollout_id


async def test_status_tells_phase_and_attempt_without_a_lease(api: Api) -> None:
    await api.admitted()
    shown = []

    async def look() -> None:
        body = (await api.http.get("/rollout/r-1/status")).json()
        shown.append((body["status"], body["phase"], body["attempt"]))

    await look()
    await api.claim()
    await look()
    await api.enter()
    await look()
    await api.enter(phase="grading")
    await look()
    await api.finish()
    await look()
    assert shown == [
        ("queued", None, 0),
        ("queued", None, 1),
        ("running", "running", 1),
        ("grading", "grading", 1),
        ("success", None, 1),
    ]
    assert "lease_renewed" not in await api.event_types()


async def test_lost_attempt_steps_the_status_back_and_wakes_the_poll(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    await api.claim()
    await api.enter()
    poll = await parked(api, token)
    await api.ledger.submit(cmd.CloseAttempt("r-1", 1, SCHEDULER, "lost", "its runner died"))
    assert (await asyncio.wait_for(poll, LIMIT_SEC)).json()["status"] == "queued"
