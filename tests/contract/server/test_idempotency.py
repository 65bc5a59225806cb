"""`Idempotency-Key`: the same request has the same admission again, whatever happened and whoever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.commands import CloseAdmission
from rollbook.ledger.replay import verify_replay
from rollbook_client import IDEMPOTENCY_KEY_HEADER, RolloutClient
from tests.contract.server.processes import ApiProcess, running
from tests.contract.server.support import LIMIT_SEC, URL, Api, admission_body, serving
from tests.support.balancer import balanced
from tests.support.contents import all_bytes
from tests.support.ledger import rows

REUSED = {"detail": "Idempotency-Key was used with another request before; send a new key with every new request"}


async def send(api: Api, *keys: str, rollout_id: str = "r-1", **fields: Any) -> httpx.Response:
    headers = [(IDEMPOTENCY_KEY_HEADER, key) for key in keys]
    return await api.http.post("/rollout", json=admission_body(rollout_id, **fields), headers=headers)


async def test_repeated_admission_has_the_same_answer_and_is_one_rollout(api: Api) -> None:
    first, again = await send(api, "k"), await send(api, "k")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert await api.event_types() == ["rollout_admitted"]
    assert (await api.poll(again.json()["polling_lease_token"])).status_code == 200


async def test_many_at_once_are_one_rollout(api: Api) -> None:
    answers = await asyncio.gather(*(send(api, "k") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert await api.event_types() == ["rollout_admitted"]


async def test_repeated_admission_is_answered_after_the_end(api: Api) -> None:
    first = await send(api, "k")
    await api.run()
    again = await send(api, "k")
    assert again.json() == first.json()
    assert (await api.poll(again.json()["polling_lease_token"])).json()["status"] == "success"


@pytest.mark.parametrize(
    "change",
    [
        {"label": "other"},
        {"rollout_id": "r-2"},
        {"llm_api_key": "sk-other"},
        {"chat_completions_url": f"{URL}/other"},
        {"metadata": {"row": 2}},
    ],
    ids=str,
)
async def test_key_with_another_request_is_refused_and_admits_nothing(api: Api, change: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"label": "42", "llm_api_key": "sk-1", "metadata": {"row": 1}}
    assert (await send(api, "k", **whole)).status_code == 202
    refused = await send(api, "k", **{**whole, **change})
    assert (refused.status_code, refused.json()) == (422, REUSED)
    assert len(await api.ledger.reader.events_page()) == 1


async def test_body_written_differently_is_the_same_request(api: Api) -> None:
    first = await send(api, "k", metadata={"a": 1, "b": 2}, agent_timeout_sec=1, unknown=1)
    again = await send(api, "k", metadata={"b": 2, "a": 1}, agent_timeout_sec=1.0, label=None, grade=True)
    assert again.json() == first.json()


async def test_known_id_stays_taken_without_the_key_and_with_another(api: Api) -> None:
    assert (await send(api, "k")).status_code == 202
    for other in (await send(api), await send(api, "k-2")):
        assert (other.status_code, other.json()) == (409, {"detail": "rollout_id is already registered"})


@pytest.mark.parametrize(
    "keys", [[""], ["a b"], ["x" * 256], ["kéy"], ["a\tb"], ["one", "two"], ["same", "same"]], ids=repr
)
async def test_key_that_cannot_be_kept_is_refused_by_name(api: Api, keys: list[str]) -> None:
    headers = [(IDEMPOTENCY_KEY_HEADER.encode(), key.encode()) for key in keys]
    refused = await api.http.post("/rollout", json=admission_body(), headers=headers)
    assert refused.status_code == 422
    (item,) = refused.json()["detail"]
    assert item["loc"] == ["header", IDEMPOTENCY_KEY_HEADER]
    assert await api.ledger.reader.events_page() == []


async def test_longest_key_works(api: Api) -> None:
    key = "~" * 254 + "!"
    assert (await send(api, key)).json() == (await send(api, key)).json()


async def test_what_was_admitted_is_answered_while_the_queue_is_full(database_url: str) -> None:
    async with serving(database_url, max_queue_depth=1) as api:
        first = await send(api, "k")
        assert (await send(api, "k-2", rollout_id="r-2")).status_code == 429
        assert (await send(api, "k")).json() == first.json()


async def test_draining_ledger_answers_what_was_admitted_and_nothing_new(api: Api) -> None:
    first = await send(api, "k")
    await api.ledger.submit(CloseAdmission(by="test"))
    refused = await send(api, "k-2", rollout_id="r-2")
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert "draining" in refused.json()["detail"]
    again = await send(api, "k")
    assert again.json() == first.json()
    health = (await api.http.get("/health")).json()
    assert health["lifecycle"] == {"accepting_rollouts": False, "active_rollouts": 1}
    assert (await api.poll(again.json()["polling_lease_token"])).json()["status"] == "queued"
    assert (await api.cancel(ids=["r-1"])).json() == {"dispositions": {"r-1": "cancelled_queued"}}


async def test_token_is_kept_nowhere(api: Api, database_url: str) -> None:
    token = (await send(api, "k", llm_api_key="sk-very-secret-0123")).json()["polling_lease_token"]
    shown = (await api.http.get("/events")).content + all_bytes(database_url)
    assert token.encode() not in shown
    assert b"sk-very-secret-0123" not in shown


@pytest.fixture
def pair(database_url: str) -> Iterator[tuple[ApiProcess, ApiProcess]]:
    with running(database_url) as first, running(database_url) as second:
        yield first, second


async def test_two_processes_answer_one_admission_alike(pair: tuple[ApiProcess, ApiProcess], database_url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_SEC, verify=False) as http:

        async def ask(api: ApiProcess, name: str) -> httpx.Response:
            headers = {IDEMPOTENCY_KEY_HEADER: f"key-{name}"}
            return await http.post(f"{api.url}/rollout", json=admission_body(name), headers=headers)

        names = [f"r-{i}" for i in range(20)]
        answers = await asyncio.gather(*(ask(api, name) for name in names for api in pair))
    assert {answer.status_code for answer in answers} == {202}
    for one, other in zip(answers[::2], answers[1::2], strict=True):
        assert one.json() == other.json()
    assert rows(database_url, "SELECT count(*) FROM events") == [(20,)]


async def test_client_repeats_a_call_whose_answer_was_lost_with_its_process(
    database_url: str,
) -> None:
    """An API is killed under load; every call ends at the other one, and each rollout exists once and whole."""
    names = [f"r-{i}" for i in range(60)]
    with (
        running(database_url) as victim,
        running(database_url) as survivor,
        balanced([victim.settings.port, survivor.settings.port]) as url,
    ):
        async with RolloutClient(url=url) as client:

            async def admit(name: str) -> None:
                handle = await client.run_rollout_async([], URL, name, llm_api_key="sk", idempotency_key=f"key-{name}")
                handle.cancel()

            calls = [asyncio.create_task(admit(name)) for name in names]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            victim.child.kill()
            await asyncio.gather(*calls)
    assert rows(database_url, "SELECT count(*) FROM rollouts") == [(len(names),)]
    assert rows(database_url, "SELECT count(*) FROM events WHERE type = 'rollout_admitted'") == [(len(names),)]
    assert rows(database_url, "SELECT count(*) FROM secrets") == [(len(names),)]
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


async def test_depth_of_a_queue_counts_over_all_processes(database_url: str) -> None:
    limit = 10
    with (
        running(database_url, max_queue_depth=limit) as first,
        running(database_url, max_queue_depth=limit) as second,
    ):
        async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_SEC, verify=False) as http:
            posts = (
                http.post(f"{(first, second)[i % 2].url}/rollout", json=admission_body(f"r-{i}")) for i in range(60)
            )
            answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [202] * limit + [429] * (60 - limit)
    assert rows(database_url, "SELECT queued FROM queue_counts") == [(limit,)]
