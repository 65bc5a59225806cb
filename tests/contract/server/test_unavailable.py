"""A ledger that cannot be written: 503, and service again once it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from rollbook.server import outages
from rollbook.server.app import build_app
from rollbook.server.member import ApiMember
from rollbook.server.outages import Outages
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


class Lines(logging.Handler):
    """What a logger says, as it says it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self._more.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(LIMIT_SEC):
            while len(self.said) < count:
                self._more.clear()
                await self._more.wait()
        return self.said


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    outages.log.addHandler(handler)
    yield handler
    outages.log.removeHandler(handler)


async def test_refused_requests_are_told_once_and_counted_when_it_is_over(
    api: Api, database_url: str, lines: Lines
) -> None:
    api.service.outages = Outages(lasts=lambda: not over, quiet_sec=0.001)
    over = False
    begins = "requests are answered 503: the ledger cannot be written now"
    token = await api.admitted()
    with unwritable(database_url):
        for _ in range(2):
            assert [(await api.poll(token)).status_code, (await api.cancel(ids=["r-1"])).status_code] == [503, 503]
    (told,) = lines.said
    assert told.startswith(begins)
    over = True
    assert (await lines.until(2))[1] == "requests are served again; answered 503 meanwhile: 4"
    with unwritable(database_url):
        await api.poll(token)
    assert (await lines.until(3))[2].startswith(begins)
    assert (await lines.until(4))[3] == "requests are served again; answered 503 meanwhile: 1"
