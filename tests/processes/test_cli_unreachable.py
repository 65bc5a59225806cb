"""A database that cannot be reached: each command says in one line which one, why, and what to correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import parse_url
from rollbook.settings import DATABASE_VARIABLE
from tests.support.commands import CommandLine
from tests.support.databases import SECRET_KEY
from tests.support.postgres import fresh_database

COMMANDS = [
    ("rollouts",),
    ("show", "r-1"),
    ("events",),
    ("cancel", "--all"),
    ("drain", "--no-wait"),
    ("replay", "--verify"),
    ("audit", "verify"),
    ("ledger", "archive", "--before", "-1d", "--to", "new.jsonl.gz"),
    ("db", "upgrade"),
    ("db", "check"),
    ("db", "accept-key"),
    ("serve", "--no-scheduler", "--queue", "q"),
    ("scheduler", "flow.py"),
]
CORRECT = "; start it, or correct the URL with its host, user, password and database"


@pytest.fixture
def rollbook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv(KEY_VARIABLE, SECRET_KEY)
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text("")
    return CommandLine("", capfd)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_server_that_is_not_there_is_named(
    rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://me:pass-word@127.0.0.1:1/rollbook")
    refused = rollbook(*command)
    assert refused.code == 1
    assert refused.error_line.startswith("postgresql://127.0.0.1:1/rollbook cannot be used: ")
    assert refused.error_line.endswith(CORRECT)
    assert "pass-word" not in refused.err and "file" not in refused.err


def test_what_a_server_refuses_is_named(rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_database() as url:
        server = parse_url(url)
        wrong = {
            "no_such_database": server.set(database="no_such_database"),
            "no_such_user": server.set(username="no_such_user"),
            "/no/such/folder": server.set(query={**server.query, "host": "/no/such/folder"}),
        }
        for name, place in wrong.items():
            monkeypatch.setenv(DATABASE_VARIABLE, place.render_as_string(hide_password=False))
            for command in (("rollouts",), ("db", "upgrade"), ("drain", "--no-wait")):
                refused = rollbook(*command)
                assert refused.code == 1
                assert f"/{place.database} cannot be used: " in refused.error_line
                assert name in refused.error_line
                assert refused.error_line.endswith(CORRECT)
