"""A ledger that cannot be written: 503, and service again once it can."""

from __future__ import annotations

from typing import Any, cast

import httpx

from rollbook.server.app import build_app
from rollbook.server.member import ApiMember
from rollbook.server.service import ApiService
from rollbook.settings import ApiSettings
from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.support import LIMIT_SEC, Api, admission_body
from tests.support.outages import unwritable


async def test_writes_answer_503_and_work_again_when_the_cause_is_gone(api: Api, database_url: str) -> None:
    token = await api.admitted()
    with unwritable(database_url):
        refused = [await api.admit("r-2"), await api.poll(token), await api.cancel(ids=["r-1"])]
        assert [response.status_code for response in refused] == [503, 503, 503]
        for response in refused:
            assert response.headers["retry-after"] == "1"
            assert response.json() == {"detail": "the ledger is not available now; retry later"}
        assert (await api.http.get("/health")).status_code == 200
        assert (await api.http.get("/rollout/r-1/status")).status_code == 200
    assert (await api.admit("r-2")).status_code == 202
    assert (await api.poll(token)).status_code == 200
    assert await api.event_types("r-2") == ["rollout_admitted"]


async def test_failing_beat_is_told_in_health_and_tried_again(api: Api, database_url: str) -> None:
    member = ApiMember(api.ledger, lease_timeout_sec=60.0, accepting=lambda: True)
    api.service.loops["beat"] = lambda: member.trouble
    await member.start()
    with unwritable(database_url):
        assert not await member.run_once()
        (trouble,) = (await api.http.get("/health")).json()["background"]
        assert trouble["loop"] == "beat"
        assert "the ledger cannot be written now" in trouble["trouble"]
    assert await member.run_once()
    assert (await api.http.get("/health")).json()["background"] == []
    await member.stop()


async def test_service_whose_ledger_is_not_open_yet_answers_503() -> None:
    service = ApiService(None, ApiSettings(database_url="sqlite:///unused", queue="q"))
    transport = httpx.ASGITransport(cast(Any, build_app(service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=LIMIT_SEC) as http:
        responses = [
            await http.post("/rollout", json=admission_body()),
            await http.get("/rollout/r-1/result", headers={POLLING_LEASE_HEADER: "x"}),
            await http.get("/health"),
            await http.get("/rollouts"),
            await http.get("/events"),
        ]
    assert {response.status_code for response in responses} == {503}
