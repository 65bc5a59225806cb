"""Which secret keys processes may work with: all of a ledger's the same ones, and a new one only beside the old."""

from __future__ import annotations

import logging
import threading

import pytest
import sqlalchemy as sa

from rollbook.ledger import commands as cmd
from rollbook.ledger.database import Database, database_of
from rollbook.ledger.keyring import accept_key, process_keys, record_key
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.secrets import KEY_VARIABLE, RolloutSecrets, SecretKeyError, SecretKeys, new_key
from tests.support import ledger as make

SECRETS = RolloutSecrets("https://chat.example/v1", "sk-1")
FIRST, SECOND, THIRD = (new_key() for _ in range(3))


@pytest.fixture
def place(migrated_url: sa.URL) -> Database:
    """The ledger's database."""
    return database_of(migrated_url)


class Starting:
    """Processes that start one after the other with the keys they are given."""

    def __init__(self, place: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place = place
        self._monkeypatch = monkeypatch

    def __call__(self, *keys: str) -> SecretKeys:
        self._monkeypatch.setenv(KEY_VARIABLE, ",".join(keys))
        return process_keys(self._place)


@pytest.fixture
def start(place: Database, monkeypatch: pytest.MonkeyPatch) -> Starting:
    return Starting(place, monkeypatch)


def known(place: Database) -> list[str]:
    url = place.url.render_as_string(hide_password=False)
    found = make.rows(url, "SELECT generation, fingerprint FROM key_fingerprints ORDER BY generation")
    assert [generation for generation, _ in found] == list(range(1, len(found) + 1))
    return [fingerprint for _, fingerprint in found]


def fingerprint(key: str) -> str:
    return SecretKeys.parse(key).fingerprints[0]


def waiting(keys: SecretKeys, rollout_id: str) -> cmd.Admit:
    return make.admit(rollout_id, sealed=keys.seal(SECRETS, rollout_id))


async def test_without_a_key_in_the_environment_one_is_made_or_start_is_refused(
    place: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    if place.capabilities.makes_its_key:
        sealed = process_keys(place).seal(SECRETS, "r-1")
        assert process_keys(place).open(sealed, "r-1") == SECRETS
    else:
        with pytest.raises(SecretKeyError, match=f"{KEY_VARIABLE}.*rollbook secret-key"):
            await Ledger.open(database_url)


async def test_who_neither_seals_nor_opens_needs_no_key_and_makes_none(
    place: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    ledger = await Ledger.open(database_url, with_keys=False)
    await ledger.submit(make.cancel("r-1"))
    await ledger.close()
    assert known(place) == []
    assert place.key_file is None or not place.key_file.exists()


def test_all_processes_with_the_same_key_start(start: Starting, place: Database) -> None:
    sealed = start(FIRST).seal(SECRETS, "r-1")
    assert start(FIRST).open(sealed, "r-1") == SECRETS
    assert known(place) == [fingerprint(FIRST)]


def test_another_key_is_refused_though_nothing_waits(start: Starting, place: Database) -> None:
    start(FIRST)
    with pytest.raises(SecretKeyError) as refused:
        start(SECOND)
    says = str(refused.value)
    assert fingerprint(FIRST)[:8] in says and fingerprint(SECOND)[:8] in says
    assert KEY_VARIABLE in says and "rollbook db accept-key" in says
    assert FIRST not in says and SECOND not in says
    assert known(place) == [fingerprint(FIRST)]


async def test_a_ledger_is_not_opened_with_another_key(
    start: Starting, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(FIRST)
    monkeypatch.setenv(KEY_VARIABLE, SECOND)
    with pytest.raises(SecretKeyError, match="go by"):
        await Ledger.open(database_url)
    ledger = await Ledger.open(database_url, with_keys=False)
    await ledger.close()


def test_a_rotation_by_its_steps_refuses_nobody_and_loses_nothing(start: Starting, place: Database) -> None:
    before = start(FIRST).seal(SECRETS, "r-1")
    start(FIRST, SECOND)
    start(FIRST)  # not restarted with both yet
    assert known(place) == [fingerprint(FIRST)]
    after = start(SECOND, FIRST).seal(SECRETS, "r-2")
    late = start(FIRST, SECOND)  # the new key is not the first one here yet
    assert (late.open(before, "r-1"), late.open(after, "r-2")) == (SECRETS, SECRETS)
    start(SECOND)
    assert known(place) == [fingerprint(FIRST), fingerprint(SECOND)]
    with pytest.raises(SecretKeyError, match=fingerprint(SECOND)[:8]):
        start(FIRST)


def test_a_new_key_without_the_old_one_is_no_rotation(start: Starting, place: Database) -> None:
    start(FIRST)
    with pytest.raises(SecretKeyError):
        start(SECOND, THIRD)
    assert known(place) == [fingerprint(FIRST)]


def test_a_ledger_without_fingerprints_takes_the_key_that_opens_what_waits(start: Starting, place: Database) -> None:
    url = place.url.render_as_string(hide_password=False)
    with make.writing(url) as writer:
        writer.do(waiting(SecretKeys.parse(FIRST), "r-1"))
    with pytest.raises(SecretKeyError, match="1 of 1 rollouts that are not over, 'r-1' among them"):
        start(SECOND)
    assert known(place) == []
    start(SECOND, FIRST)
    assert known(place) == [fingerprint(SECOND)]


def test_of_several_first_processes_with_different_keys_one_is_taken(place: Database) -> None:
    at_once = threading.Barrier(3)
    ended: list[str] = []

    def run(key: str) -> None:
        at_once.wait(30)
        try:
            record_key(place, SecretKeys.parse(key))
            ended.append("taken")
        except SecretKeyError:
            ended.append("refused")

    threads = [threading.Thread(target=run, args=(key,)) for key in (FIRST, SECOND, THIRD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == ["refused", "refused", "taken"]
    assert len(known(place)) == 1


def test_a_key_is_taken_by_request_where_the_one_before_is_lost(
    start: Starting, place: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.url.render_as_string(hide_password=False)
    lost = start(FIRST)
    with make.writing(url) as writer:
        writer.batch(waiting(lost, "r-1"), make.api())
    monkeypatch.setenv(KEY_VARIABLE, SECOND)
    accepted = accept_key(place)
    assert (accepted.fingerprint, accepted.changed) == (fingerprint(SECOND), True)
    assert (accepted.lost, accepted.tried) == (1, 1)
    assert not accept_key(place).changed
    start(SECOND)
    with pytest.raises(SecretKeyError):
        start(FIRST)
    monkeypatch.setenv(KEY_VARIABLE, FIRST)  # it was found again
    assert accept_key(place).changed
    start(FIRST)
    assert known(place) == [fingerprint(FIRST), fingerprint(SECOND), fingerprint(FIRST)]


def test_it_is_logged_which_key_a_ledger_goes_by(start: Starting, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rollbook.ledger.keyring"):
        start(FIRST)
        start(FIRST)
    assert [record.getMessage() for record in caplog.records] == [
        f"the ledger goes by the secret key {fingerprint(FIRST)[:8]} from now on, of {KEY_VARIABLE}"
    ]
