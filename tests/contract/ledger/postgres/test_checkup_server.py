"""A check-up of a server: whether it can be reached, wakes its processes, and lets them do their work."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.checkup import check_up
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import KEY_VARIABLE, new_key
from rollbook.ledger.urls import parse_url
from tests.support.outages import unwritable
from tests.support.postgres import execute, private_server

PASSWORD = "do-not-tell-anybody"


async def diagnoses(database_url: str) -> dict[str, Diagnosis]:
    return {diagnosis.subject: diagnosis async for diagnosis in check_up(parse_url(database_url))}


async def test_what_is_reached_is_told_with_its_release_its_clock_and_its_wake_ups(database_url: str) -> None:
    found = await diagnoses(database_url)
    assert "PostgreSQL" in found["database"].text
    assert {found[subject].level for subject in ("clock", "pooler", "wake-ups", "connections")} == {"ok"}


async def test_a_server_that_is_not_there_is_told_alone_and_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    found = await diagnoses(f"postgresql://me:{PASSWORD}@127.0.0.1:9/ledger")
    assert {subject: diagnosis.level for subject, diagnosis in found.items()} == {"database": "error"}
    assert PASSWORD not in str(found)


async def test_a_database_that_is_not_there_is_told(database_url: str) -> None:
    url = make_url(database_url).set(database="rollbook_nowhere").render_as_string(hide_password=False)
    found = await diagnoses(url)
    assert found["database"].level == "error"
    assert "rollbook_nowhere" in found["database"].text


async def test_a_missing_key_is_told(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    found = (await diagnoses(database_url))["secret key"]
    assert found.level == "error"
    assert KEY_VARIABLE in found.text


async def test_a_server_that_takes_no_writes_is_told(database_url: str) -> None:
    with unwritable(database_url):
        found = (await diagnoses(database_url))["writing"]
    assert found.level == "error"


async def test_rights_that_are_missing_are_told_as_grants() -> None:
    with private_server(fsync="off") as server:
        upgrade(parse_url(server.url()))
        execute(server.superuser_url(), f"CREATE ROLE looker LOGIN PASSWORD '{PASSWORD}'")
        execute(server.url(), "GRANT SELECT ON ALL TABLES IN SCHEMA public TO looker")
        url = make_url(server.url()).set(username="looker", password=PASSWORD)
        found = await diagnoses(url.render_as_string(hide_password=False))
    assert {found[subject].level for subject in ("durability", "rights", "writing")} == {"error"}
    fix = found["rights"].fix or ""
    assert 'GRANT INSERT ON events TO "looker"' in fix
    assert 'GRANT UPDATE ON rollouts TO "looker"' in fix
    assert "SELECT" not in fix
