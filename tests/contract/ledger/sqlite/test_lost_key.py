"""A lost secret key is told before a new one makes the old secrets unreadable for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from rollbook.ledger.checkup import check_up
from rollbook.ledger.clock import host_clock_us
from rollbook.ledger.database import database_of
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.keyring import accept_key, process_keys
from rollbook.ledger.secrets import KEY_VARIABLE, SecretKeyError, new_key
from rollbook.ledger.sqlite.engines import key_path
from tests.support.ledger import Clock, admit, api, cancel, writing

Lose = Callable[[], None]


@pytest.fixture
def lose_key(migrated_url: sa.URL) -> Lose:
    process_keys(database_of(migrated_url))
    return key_path(migrated_url).unlink


def test_an_empty_ledger_gets_a_new_key(migrated_url: sa.URL, lose_key: Lose) -> None:
    lose_key()
    process_keys(database_of(migrated_url))
    assert key_path(migrated_url).exists()
    process_keys(database_of(migrated_url))


def test_a_key_that_waiting_rollouts_need_is_not_replaced_but_by_request(
    migrated_url: sa.URL, lose_key: Lose, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(migrated_url.render_as_string()) as writer:
        writer.batch(admit("r-1"))
    lose_key()
    with pytest.raises(SecretKeyError, match="put it back, or take a new one with `rollbook db accept-key`"):
        process_keys(database_of(migrated_url))
    assert not key_path(migrated_url).exists()
    assert accept_key(database_of(migrated_url)).lost == 1
    assert key_path(migrated_url).exists()
    process_keys(database_of(migrated_url))
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with pytest.raises(SecretKeyError, match="go by"):
        process_keys(database_of(migrated_url))


def test_a_key_that_processes_go_by_is_not_replaced(migrated_url: sa.URL, lose_key: Lose) -> None:
    clock = Clock(host_clock_us())
    with writing(migrated_url.render_as_string(), clock) as writer:
        writer.batch(api())
    lose_key()
    with pytest.raises(SecretKeyError, match="stop them and start again"):
        process_keys(database_of(migrated_url))


def test_another_key_file_is_refused_with_its_name(migrated_url: sa.URL, lose_key: Lose) -> None:
    lose_key()
    key_path(migrated_url).write_text(new_key())
    with pytest.raises(SecretKeyError, match=str(key_path(migrated_url))):
        process_keys(database_of(migrated_url))


async def test_a_check_up_tells_of_it(migrated_url: sa.URL, lose_key: Lose) -> None:
    async def told() -> Diagnosis:
        return next(iter([found async for found in check_up(migrated_url) if found.subject == "secret key"]))

    lose_key()
    found = await told()
    assert (found.level, f"{key_path(migrated_url)} is gone" in found.text) == ("warning", True)
    with writing(migrated_url.render_as_string()) as writer:
        writer.batch(admit("r-1"))
    found = await told()
    assert (found.level, "rollbook db accept-key" in (found.fix or "")) == ("error", True)
    assert not key_path(migrated_url).exists()


def test_a_key_that_nobody_needs_any_more_is_replaced(migrated_url: sa.URL, lose_key: Lose) -> None:
    with writing(migrated_url.render_as_string()) as writer:
        writer.batch(admit("r-1"))
        writer.batch(cancel("r-1"))
    lose_key()
    process_keys(database_of(migrated_url))
    assert key_path(migrated_url).exists()
