"""Admission: what is answered, what is recorded, and what is recorded nowhere."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollbook.ledger.codec import loads
from rollbook.ledger.secrets import token_digest
from tests.contract.server.support import QUEUE, Api, admission_body, serving
from tests.support.contents import all_bytes

SECRET_KEY = "sk-0123456789-very-secret"
SECRET_URL = "https://user:pass@chat.example:8443/cap/3f9c1b/v1?sig=abcdef123456"


async def test_answer_carries_the_token_and_the_timing(database_url: str) -> None:
    async with serving(database_url, result_wait_timeout_sec=1.5, polling_lease_timeout_sec=7.0) as api:
        body = (await api.admit("r-1")).json()
        token = body.pop("polling_lease_token")
        assert len(token) >= 32
        assert body == {
            "rollout_id": "r-1",
            "status": "queued",
            "result_wait_timeout_sec": 1.5,
            "polling_lease_timeout_sec": 7.0,
        }
        assert (await api.service.state("r-1")).lease_digest == token_digest(token)
        assert (await api.service.state("r-1")).lease_timeout_us == 7_000_000


async def test_row_carries_the_settings_of_the_api(database_url: str) -> None:
    async with serving(database_url, queue="other", max_attempts=5) as api:
        await api.admitted(agent_timeout_sec=2.5)
        state = await api.service.state("r-1")
        assert (state.queue, state.max_attempts, state.agent_timeout_us) == ("other", 5, 2_500_000)


async def test_event_carries_the_public_part_of_the_request(api: Api) -> None:
    fields: dict[str, Any] = {
        "label": "42",
        "metadata": {"row": 1},
        "grade": False,
        "agent_timeout_sec": 3,
        "grader_timeout_sec": None,
        "extra_fields": {"a": [1.5]},
    }
    await api.admitted(**fields)
    (event,) = await api.ledger.reader.events_page()
    request = loads(event.payload)["request"]
    assert request == {"initial_messages": [{"role": "user", "content": "6 x 7?"}], **fields}


async def test_key_and_url_are_in_no_event_and_nowhere_in_the_database_and_come_back_for_the_execution(
    api: Api, database_url: str
) -> None:
    await api.admitted(llm_api_key=SECRET_KEY, chat_completions_url=SECRET_URL)
    await api.claim()
    (work,) = await api.ledger.reader.work([await api.service.state("r-1")])
    secrets = api.ledger.keys.open(work.sealed, "r-1")
    assert (secrets.chat_completions_url, secrets.llm_api_key) == (SECRET_URL, SECRET_KEY)
    assert work.request.endpoint_origin == "https://chat.example:8443"
    shown = (await api.http.get("/events")).content + (await api.http.get("/rollouts")).content
    kept = all_bytes(database_url)
    assert b"6 x 7?" in kept
    for secret in (SECRET_KEY, "cap/3f9c1b", "sig=abcdef123456"):
        assert secret.encode() not in shown
        assert secret.encode() not in kept


async def test_refused_admission_tells_no_secret_of_its_body(api: Api) -> None:
    response = await api.admit("a/b", llm_api_key=SECRET_KEY, chat_completions_url=SECRET_URL, label=42)
    assert response.status_code == 422
    assert SECRET_KEY not in response.text
    assert "sig=" not in response.text


async def test_every_missing_field_is_named(api: Api) -> None:
    response = await api.http.post("/rollout", json={"label": "42"})
    assert [item["loc"] for item in response.json()["detail"]] == [
        ["body", "initial_messages"],
        ["body", "chat_completions_url"],
        ["body", "rollout_id"],
    ]


@pytest.mark.parametrize(
    "fields, loc",
    [
        ({"label": 42}, ["body", "label"]),
        ({"initial_messages": [{}, 3]}, ["body", "initial_messages", 1]),
        ({"rollout_id": "a/b"}, ["body", "rollout_id"]),
        ({"llm_api_key": ""}, ["body", "llm_api_key"]),
        ({"llm_api_key": "\ud800"}, ["body", "llm_api_key"]),
    ],
)
async def test_wrong_field_is_named(api: Api, fields: dict[str, object], loc: list[str | int]) -> None:
    response = await api.http.post("/rollout", content=json.dumps({**admission_body(), **fields}))
    assert response.status_code == 422
    assert [item["loc"] for item in response.json()["detail"]] == [loc]


async def test_full_queue_answers_when_to_try_again(database_url: str) -> None:
    async with serving(database_url, max_queue_depth=1) as api:
        await api.admitted("r-1")
        full = await api.admit("r-2")
        assert full.status_code == 429
        assert full.headers["retry-after"] == "5"
        assert full.json() == {"detail": "rollout queue is full; retry later"}
        # A full queue is told before a known id: the client is to try the same request again.
        assert (await api.admit("r-1")).status_code == 429
        await api.claim()
        assert (await api.admit("r-2")).status_code == 202


async def test_shutting_down_is_told_after_what_is_wrong_with_the_request_and_before_all_else(
    database_url: str,
) -> None:
    async with serving(database_url, max_request_bytes=1_000, max_queue_depth=1) as api:
        token = await api.admitted("r-1")
        api.service.stop_admissions()
        refused = await api.admit("r-1")
        assert refused.status_code == 503
        assert refused.json() == {"detail": "rollout server is shutting down"}
        assert (await api.admit("r-2", label="x" * 1_000)).status_code == 413
        assert (await api.admit("a/b")).status_code == 422
        assert (await api.http.post("/rollout", content=b"{")).status_code == 400
        assert (await api.poll(token)).status_code == 200


async def test_one_of_many_admissions_of_one_id_wins(api: Api) -> None:
    answers = await asyncio.gather(*(api.admit("r-1") for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 9
    (winner,) = [answer for answer in answers if answer.status_code == 202]
    assert (await api.poll(winner.json()["polling_lease_token"])).status_code == 200


async def test_content_type_does_not_matter(api: Api) -> None:
    for number, kind in enumerate(
        ("application/json; charset=utf-8", "text/plain", "application/x-www-form-urlencoded")
    ):
        body = json.dumps(admission_body(f"r-{number}"))
        response = await api.http.post("/rollout", content=body, headers={"content-type": kind})
        assert response.status_code == 202


async def test_admission_goes_to_the_queue_of_the_api(api: Api) -> None:
    await api.admitted()
    assert (await api.service.state("r-1")).queue == QUEUE
