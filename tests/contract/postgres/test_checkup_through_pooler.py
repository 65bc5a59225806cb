"""A check-up through a pooler: what it costs is told, or what must change before anything works."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.checkup import check_up
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.postgres import checkup, pooling
from rollbook.ledger.urls import parse_url
from tests.contract.postgres.pooler import pooler_before
from tests.support.postgres import shared_server


@pytest.fixture
def tcp_url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pooling, "TURN_LIMIT_SEC", 0.2)
    return shared_server().url(make_url(database_url).database, tcp=True)


async def diagnoses(url: str) -> dict[str, Diagnosis]:
    """In a thread of its own, as a command has it: the pooler needs this one's loop."""

    async def gathered() -> list[Diagnosis]:
        return [found async for found in check_up(parse_url(url))]

    found = await asyncio.to_thread(asyncio.run, gathered())
    return {diagnosis.subject: diagnosis for diagnosis in found}


async def test_late_wake_ups_are_told_where_sessions_change(tcp_url: str) -> None:
    async with pooler_before(tcp_url, size=4) as pooler:
        found = await diagnoses(pooler.url)
    assert found["pooler"].level == "warning"
    assert "session mode" in (found["pooler"].fix or "")
    assert "wake-ups" not in found
    assert {found[subject].level for subject in ("database", "schema", "writing", "guards", "ledger")} == {"ok"}


async def test_notifications_that_do_not_arrive_are_told(tcp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "HEARD_LIMIT_SEC", 0.2)
    # Each client keeps its session, and is told nothing that it did not ask for.
    async with pooler_before(tcp_url, lending="own") as pooler:
        found = await diagnoses(pooler.url)
    assert found["pooler"].level == "ok"
    assert found["wake-ups"].level == "warning"
    assert "swallows NOTIFY" in (found["wake-ups"].fix or "")


async def test_a_pooler_that_forgets_statements_is_told_alone_with_what_to_set(tcp_url: str) -> None:
    async with pooler_before(tcp_url, size=2, keeps_statements=False) as pooler:
        found = await diagnoses(pooler.url)
    assert list(found) == ["database"]
    assert found["database"].level == "error"
    assert "max_prepared_statements" in f"{found['database'].text} {found['database'].fix}"
