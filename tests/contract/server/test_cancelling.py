"""Cancel requests: selectors, dispositions, repetition, bounds."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.support import LIMIT_SEC, Api


async def dispositions(api: Api, **selector: object) -> object:
    response = await api.cancel(**selector)
    assert response.status_code == 200, response.text
    return response.json()["dispositions"]


async def test_each_id_is_told_what_was_found(api: Api) -> None:
    await api.admitted("running")
    await api.claim()
    await api.admitted("queued")
    found = await dispositions(api, ids=["running", "queued", "unknown", "queued"])
    assert found == {"running": "cancelled_running", "queued": "cancelled_queued", "unknown": "not_found"}


async def test_repeating_it_answers_the_same_while_the_rollout_lives(api: Api) -> None:
    await api.admitted()
    await api.claim()
    for _ in range(3):
        assert await dispositions(api, ids=["r-1"]) == {"r-1": "cancelled_running"}
    assert (await api.event_types()).count("cancellation_requested") == 1


async def test_queued_rollout_is_cancelled_at_once_and_its_poll_wakes(waiting_api: Api) -> None:
    api = waiting_api
    token = await api.admitted()
    poll = asyncio.create_task(api.http.get("/rollout/r-1/result", headers={POLLING_LEASE_HEADER: token}))

    async def renewed() -> bool:
        return await api.seq() == 2

    await api.until(renewed)
    assert await dispositions(api, ids=["r-1"]) == {"r-1": "cancelled_queued"}
    assert (await asyncio.wait_for(poll, LIMIT_SEC)).json() == {
        "rollout_id": "r-1",
        "status": "cancelled",
        "sample": None,
        "err_message": "cancelled",
        "err_category": None,
    }
    assert await dispositions(api, ids=["r-1"]) == {"r-1": "not_found"}


async def test_execution_that_returns_all_the_same_ends_by_its_own_outcome(api: Api) -> None:
    token = await api.admitted()
    await api.claim()
    await api.enter()
    await dispositions(api, ids=["r-1"])
    await api.finish()
    assert (await api.poll(token)).json()["status"] == "success"


async def test_prefix_and_all_select_what_lives_and_list_what_just_ended(api: Api) -> None:
    await api.admitted("a-done")
    await api.run("a-done")
    for rollout_id in ("a-1", "a-2", "b-1"):
        await api.admitted(rollout_id)
    assert await dispositions(api, prefix="a-") == {
        "a-1": "cancelled_queued",
        "a-2": "cancelled_queued",
        "a-done": "not_found",
    }
    everything = await dispositions(api, all=True)
    assert everything == {"a-1": "not_found", "a-2": "not_found", "a-done": "not_found", "b-1": "cancelled_queued"}
    assert await dispositions(api, prefix="") == dict.fromkeys(("a-1", "a-2", "a-done", "b-1"), "not_found")
    assert await dispositions(api, prefix="zzz") == {}


async def test_request_says_who_asked_and_how(api: Api) -> None:
    await api.admitted()
    await api.claim()
    await dispositions(api, prefix="r")
    events = await api.ledger.reader.events_page(rollout_id="r-1")
    (payload,) = [event.payload for event in events if event.type == "cancellation_requested"]
    assert msgspec.json.decode(payload) == {"requested_by": "api", "selector": "prefix:r"}


async def test_finish_of_a_cancelled_attempt_is_told_as_cancelled(api: Api) -> None:
    token = await api.admitted()
    await api.claim()
    await dispositions(api, all=True)
    await api.finish(status="cancelled", sample=None)
    body = (await api.poll(token)).json()
    assert (body["status"], body["err_message"], body["sample"]) == ("cancelled", "cancelled", None)
    assert (await api.service.state("r-1")).scheduler is None
