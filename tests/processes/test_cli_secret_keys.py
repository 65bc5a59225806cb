"""Commands and secret keys: who seals or opens is refused with another one, all others need none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.ledger.database import database_of
from rollbook.ledger.keyring import process_keys
from rollbook.ledger.secrets import KEY_VARIABLE, RolloutSecrets, SecretKeys, new_key
from rollbook.ledger.urls import parse_url
from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import CommandLine

OURS, ANOTHER = new_key(), new_key()


@pytest.fixture
def rollbook(database_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """On a ledger whose processes go by `OURS`, with one rollout that waits."""
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    monkeypatch.setenv(KEY_VARIABLE, OURS)
    keys = process_keys(database_of(parse_url(database_url)))
    with make.writing(database_url) as writer:
        sealed = keys.seal(RolloutSecrets("https://chat.example/v1"), "r-1")
        writer.do(make.admit("r-1", sealed=sealed))
    return CommandLine(database_url, capfd)


def entrypoint(folder: Path) -> str:
    path = folder / "flow.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("command", ["serve", "scheduler"])
def test_a_process_with_another_key_does_not_start(
    rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ANOTHER)
    refused = rollbook(command, entrypoint(tmp_path))
    assert refused.code == 1
    shown = SecretKeys.parse(OURS).fingerprints[0][:8]
    assert f"go by {shown}; give all of them the same in {KEY_VARIABLE}" in refused.error_line


@pytest.mark.parametrize(
    "command", ["cancel r-1", "drain --no-wait", "drain --off", "rollouts", "show r-1", "events", "audit verify"]
)
@pytest.mark.parametrize("key", ["", ANOTHER], ids=["no key", "another key"])
def test_commands_that_neither_seal_nor_open_need_no_key(
    rollbook: CommandLine, database_url: str, monkeypatch: pytest.MonkeyPatch, command: str, key: str
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    done = rollbook(*command.split())
    assert (done.code, done.err) == (0, "")
    path = database_of(parse_url(database_url)).key_file
    assert path is None or not path.exists()


def test_doctor_compares_the_key(rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ok    secret key: it opens what it should (1 tried)" in rollbook("doctor").out
    monkeypatch.setenv(KEY_VARIABLE, ANOTHER)
    assert "FIX   secret key:" in rollbook("doctor").out


def test_another_key_is_accepted_by_request(
    rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    place = database_of(parse_url(database_url)).describe()
    monkeypatch.setenv(KEY_VARIABLE, ANOTHER)
    shown = SecretKeys.parse(ANOTHER).fingerprints[0][:8]
    accepted = rollbook("db", "accept-key")
    assert accepted.code == 0
    assert accepted.out == (
        f"{place} goes by the secret key {shown} of {KEY_VARIABLE} from now on\n"
        "1 of 1 rollouts that wait or run do not open with it, and fail\n"
    )
    again = rollbook("db", "accept-key", "--json").json
    assert (again["changed"], again["lost"], again["tried"]) == (False, 1, 1)
    assert process_keys(database_of(parse_url(database_url))).fingerprints[0][:8] == shown
