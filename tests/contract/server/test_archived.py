"""What a server answers about archived rollouts: what the ledger still knows, and where the rest is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook.ledger.archives.moving import archive
from tests.contract.server.support import Api, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "old.jsonl.gz"


async def archived(api: Api, database_url: str, path: Path) -> str:
    """The token of `r-1`, which is over and archived."""
    token = await api.admitted("r-1", label="42")
    await api.run("r-1")
    assert (await api.poll(token)).json()["status"] == "success"
    await asyncio.to_thread(archive, database_url, before_at=2**62, to=path)
    return token


async def test_result_is_gone_as_after_its_retention(api: Api, database_url: str, path: Path) -> None:
    token = await archived(api, database_url, path)
    for _ in range(2):
        answer = await api.poll(token)
        assert (answer.status_code, answer.json()) == (404, {"detail": "unknown rollout_id"})
    assert (await api.poll("another token")).status_code == 403


async def test_poll_that_waits_for_longer_answers_at_once(waiting_api: Api, database_url: str, path: Path) -> None:
    token = await archived(waiting_api, database_url, path)
    async with asyncio.timeout(60):
        assert (await waiting_api.poll(token)).status_code == 404


async def test_events_say_where_they_are(api: Api, database_url: str, path: Path) -> None:
    await archived(api, database_url, path)
    answer = await api.http.get("/rollout/r-1/events")
    assert answer.status_code == 410
    assert "archived in old.jsonl.gz (archive " in answer.json()["detail"]
    assert (await api.http.get("/rollout/r-2/events")).status_code == 404


async def test_id_stays_taken_and_its_row_readable(api: Api, database_url: str, path: Path) -> None:
    await archived(api, database_url, path)
    assert (await api.admit("r-1")).status_code == 409
    assert (await api.http.get("/rollout/r-1/status")).json()["status"] == "success"
    assert (await api.cancel(ids=["r-1"])).json() == {"dispositions": {"r-1": "not_found"}}
    (listed,) = (await api.http.get("/rollouts")).json()["rollouts"]
    assert (listed["rollout_id"], listed["label"], listed["status"]) == ("r-1", "42", "success")


async def test_events_of_all_go_on_behind_what_is_archived(api: Api, database_url: str, path: Path) -> None:
    await archived(api, database_url, path)
    await api.admitted("r-2")
    page = (await api.http.get("/events")).json()
    assert [(event["rollout_id"], event["seq"]) for event in page["events"]] == [("r-2", 1)]
    assert (await api.http.get("/health")).json()["lifecycle"]["active_rollouts"] == 1


async def test_repeated_admission_with_its_key_is_answered_again(api: Api, database_url: str, path: Path) -> None:
    body = {
        "initial_messages": [],
        "chat_completions_url": "http://127.0.0.1:9/v1",
        "rollout_id": "r-9",
    }
    first = await api.http.post("/rollout", json=body, headers={"idempotency-key": "once"})
    await api.cancel(ids=["r-9"])
    await asyncio.to_thread(archive, database_url, before_at=2**62, to=path)
    again = await api.http.post("/rollout", json=body, headers={"idempotency-key": "once"})
    assert (again.status_code, again.json()) == (202, first.json())


async def test_server_that_starts_after_an_archive_serves(database_url: str, path: Path) -> None:
    async with serving(database_url) as first:
        token = await archived(first, database_url, path)
    async with serving(database_url) as second:
        assert (await second.poll(token)).status_code == 404
        other = await second.admitted("r-2")
        await second.run("r-2")
        assert (await second.poll(other, "r-2")).json()["status"] == "success"
