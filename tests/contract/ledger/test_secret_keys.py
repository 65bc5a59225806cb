"""Where the secret key comes from, as each database declares it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from rollbook.ledger.database import database_of
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.secrets import KEY_VARIABLE, RolloutSecrets, SecretKeyError, new_key

SECRETS = RolloutSecrets("https://chat.example/v1", "sk-1")


async def test_without_a_key_in_the_environment_one_is_made_or_start_is_refused(
    migrated_url: sa.URL, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    database = database_of(migrated_url)
    if database.capabilities.makes_its_key:
        sealed = database.keys().seal(SECRETS, "r-1")
        assert database_of(migrated_url).keys().open(sealed, "r-1") == SECRETS
    else:
        with pytest.raises(SecretKeyError, match=f"{KEY_VARIABLE}.*rollbook secret-key"):
            await Ledger.open(database_url)


def test_key_in_the_environment_is_the_one_of_all_processes(
    migrated_url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    sealed = database_of(migrated_url).keys().seal(SECRETS, "r-1")
    assert database_of(migrated_url).keys().open(sealed, "r-1") == SECRETS


def test_rotated_key_still_opens_what_it_sealed(migrated_url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    old = new_key()
    monkeypatch.setenv(KEY_VARIABLE, old)
    sealed = database_of(migrated_url).keys().seal(SECRETS, "r-1")
    monkeypatch.setenv(KEY_VARIABLE, f"{new_key()},{old}")
    assert database_of(migrated_url).keys().open(sealed, "r-1") == SECRETS
