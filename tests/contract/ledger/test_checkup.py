"""A check-up of a ledger: what is well, what is not, and what to do about it."""

from __future__ import annotations

import pytest

import rollbook_migrations
from rollbook.ledger import commands as cmd
from rollbook.ledger.checkup import check_up
from rollbook.ledger.clock import host_clock_us
from rollbook.ledger.database import database_of
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.schema import downgrade
from rollbook.ledger.secrets import KEY_VARIABLE, RolloutSecrets, SecretKeys, new_key
from rollbook.ledger.urls import SQLITE, parse_url
from tests.support import ledger as make
from tests.support.sql import shell

OF_THE_TESTS_SERVER = frozenset({"durability", "autovacuum", "disk", "file system"})
"""What is not well with a server or a machine that is there for tests."""


async def diagnoses(database_url: str) -> list[Diagnosis]:
    found = [diagnosis async for diagnosis in check_up(parse_url(database_url))]
    return [diagnosis for diagnosis in found if diagnosis.subject not in OF_THE_TESTS_SERVER]


async def complaints(database_url: str) -> dict[str, Diagnosis]:
    """What is not well, by subject."""
    found = await diagnoses(database_url)
    assert all(diagnosis.fix for diagnosis in found if diagnosis.level != "ok")
    return {diagnosis.subject: diagnosis for diagnosis in found if diagnosis.level != "ok"}


async def test_an_empty_ledger_is_well(database_url: str) -> None:
    assert await complaints(database_url) == {}


async def test_a_ledger_that_is_not_there_is_told_with_how_to_make_one(empty_url: str) -> None:
    found = await diagnoses(empty_url)
    assert found[-1].level == "error"
    assert "there is no ledger at" in found[-1].text
    assert "rollbook db upgrade" in (found[-1].fix or "")


async def test_a_wrong_key_is_told_before_there_is_a_ledger(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "short")
    found = await diagnoses(empty_url)
    assert "there is no ledger at" in found[-2].text
    assert (found[-1].subject, "rollbook secret-key" in (found[-1].fix or "")) == ("secret key", True)


async def test_a_missing_key_is_told_before_there_is_a_ledger(
    empty_url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    found = await complaints(empty_url)
    # On SQLite the first process to start makes one.
    assert ("secret key" in found) == (database != SQLITE)


async def test_a_check_up_makes_nothing(empty_url: str) -> None:
    await diagnoses(empty_url)
    assert database_of(parse_url(empty_url)).revision() is None


async def test_an_old_schema_is_told_with_how_to_migrate(database_url: str) -> None:
    downgrade(parse_url(database_url), "0001")
    found = (await complaints(database_url))["schema"]
    assert (found.level, rollbook_migrations.HEAD in found.text) == ("error", True)
    assert "rollbook db upgrade" in (found.fix or "")


async def test_waiting_rollouts_that_nobody_serves_must_be_seen_to(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(sealed(ledger.keys, "r-1"))
    found = (await complaints(database_url))[f"queue {make.QUEUE}"]
    assert (found.level, found.fix) == ("error", f"start one: `rollbook scheduler ENTRYPOINT --queue {make.QUEUE}`")
    await ledger.submit(make.scheduler("s-1", queues=("another",)))
    assert f"queue {make.QUEUE}" in await complaints(database_url)
    await ledger.submit(make.scheduler("s-2"))
    assert await complaints(database_url) == {}


async def test_a_scheduler_that_died_is_told_and_one_that_left_is_not(writer: make.Writing, database_url: str) -> None:
    writer.clock.now = host_clock_us() - 3_600 * make.SECOND_US
    writer.batch(make.scheduler("s-dead"), make.scheduler("s-left"), cmd.Leave("s-left"), make.api("a-dead"))
    found = await complaints(database_url)
    assert list(found) == ["scheduler s-dead on host"]
    assert "3600 s ago" in found["scheduler s-dead on host"].text


async def test_what_troubles_a_live_process_is_told(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(make.scheduler("s-1"))
    await ledger.submit(cmd.Beat("s-1", capacity=8, trouble="claims: no room"))
    found = (await complaints(database_url))["scheduler s-1 on host"]
    assert (found.level, found.text) == ("warning", "claims: no room")


async def test_closed_admission_is_told_with_how_to_open_it(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(cmd.CloseAdmission(queue="", by="me"))
    found = (await complaints(database_url))["admission"]
    assert "rollbook drain --off" in (found.fix or "")


async def test_secrets_that_the_key_does_not_open_are_told(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.submit(make.scheduler())
    await ledger.submit(sealed(ledger.keys, "r-1"))
    other = SecretKeys.parse(key := new_key())
    await ledger.submit(sealed(other, "r-2"))
    found = (await complaints(database_url))["secret key"]
    assert found.level == "error"
    assert "1 of 2 rollouts" in found.text and "'r-2'" in found.text
    await ledger.submit(make.admit("r-3", sealed=b"damaged"))
    assert "2 of 3 rollouts" in (await complaints(database_url))["secret key"].text
    monkeypatch.setenv(KEY_VARIABLE, key)
    found = (await complaints(database_url))["secret key"]
    assert (found.level, "go by" in found.text, "rollbook db accept-key" in (found.fix or "")) == ("error", True, True)


async def test_a_ledger_that_knows_no_key_yet_is_told_what_a_key_does_not_open(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make.writing(database_url) as writer:
        writer.do(sealed(SecretKeys.parse(new_key()), "r-1"))
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    assert "'r-1'" in (await complaints(database_url))["secret key"].text


async def test_a_key_that_cannot_be_read_is_told(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "short")
    found = (await complaints(database_url))["secret key"]
    assert (found.level, "rollbook secret-key" in (found.fix or "")) == ("error", True)


async def test_a_missing_guard_is_told(database_url: str) -> None:
    with shell(database_url) as db:
        if parse_url(database_url).get_backend_name() == SQLITE:
            db.rows("DROP TRIGGER events_no_delete")
        else:
            db.rows("ALTER TABLE events DISABLE TRIGGER USER")
    found = (await complaints(database_url))["guards"]
    assert found.level == "error"
    assert "rollbook audit verify" in (found.fix or "")


def sealed(keys: SecretKeys, rollout_id: str) -> cmd.Admit:
    return make.admit(rollout_id, sealed=keys.seal(RolloutSecrets("https://chat.example/v1"), rollout_id))
