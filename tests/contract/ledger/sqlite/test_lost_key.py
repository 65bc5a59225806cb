"""A lost secret key is told before a new one makes the old secrets unreadable for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from rollbook.ledger.database import database_of
from rollbook.ledger.secrets import KEY_VARIABLE, SecretKeyError, new_key
from rollbook.ledger.sqlite.engines import key_path
from tests.support.ledger import admit, cancel, writing

Lose = Callable[[], None]


@pytest.fixture
def lose_key(migrated_url: sa.URL) -> Lose:
    database_of(migrated_url).keys()
    return key_path(migrated_url).unlink


def test_an_empty_ledger_gets_a_new_key(migrated_url: sa.URL, lose_key: Lose) -> None:
    lose_key()
    database_of(migrated_url).keys()
    assert key_path(migrated_url).exists()


def test_a_key_that_waiting_rollouts_need_is_not_replaced(
    migrated_url: sa.URL, lose_key: Lose, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(migrated_url.render_as_string()) as writer:
        writer.batch(admit("r-1"))
    lose_key()
    with pytest.raises(SecretKeyError, match="put it back"):
        database_of(migrated_url).keys()
    assert not key_path(migrated_url).exists()
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    database_of(migrated_url).keys()


def test_a_key_that_nobody_needs_any_more_is_replaced(migrated_url: sa.URL, lose_key: Lose) -> None:
    with writing(migrated_url.render_as_string()) as writer:
        writer.batch(admit("r-1"))
        writer.batch(cancel("r-1"))
    lose_key()
    database_of(migrated_url).keys()
    assert key_path(migrated_url).exists()
