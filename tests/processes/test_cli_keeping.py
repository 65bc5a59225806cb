"""Commands that keep a ledger: made, checked, compared with its events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook_migrations
from rollbook.ledger.database import database_of
from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import SecretKeys
from rollbook.ledger.urls import parse_url
from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import CommandLine, environment, outcome, start
from tests.support.tampering import alter


@pytest.fixture
def database_url(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATABASE_VARIABLE, empty_url)
    return empty_url


@pytest.fixture
def place(database_url: str) -> str:
    """How commands name the ledger."""
    return database_of(parse_url(database_url)).describe()


@pytest.fixture
def rollbook(database_url: str, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(database_url, capfd)


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    upgrade(parse_url(database_url))
    with make.writing(database_url) as writer:
        writer.batch(make.scheduler(), make.admit("r-1"), make.admit("r-2"))
        writer.batch(make.claim(limit=1))
        writer.batch(make.finish("r-1"))
        yield writer


def test_upgrade_makes_a_ledger_and_check_finds_it(rollbook: CommandLine, place: str) -> None:
    missing = rollbook("db", "check")
    assert missing.code == 1
    assert missing.error_line == f"there is no ledger at {place}; make one with `rollbook db upgrade`"
    head = rollbook_migrations.HEAD
    assert rollbook("db", "upgrade").out == f"{place}: made, with schema {head}\n"
    assert rollbook("db", "check").out == f"{place}: schema {head} is current\n"
    assert rollbook("db", "check", "--json").json == {"ledger": place, "revision": head, "current": True}


def test_upgrade_says_what_it_did(rollbook: CommandLine, database_url: str, place: str) -> None:
    head = rollbook_migrations.HEAD
    upgrade(parse_url(database_url), "0001")
    assert rollbook("db", "check").error_line.endswith("run `rollbook db upgrade`")
    assert rollbook("db", "upgrade").out == f"{place}: upgraded from schema 0001 to {head}\n"
    assert rollbook("db", "upgrade").out == f"{place}: schema {head} is current, nothing was to do\n"
    told = {"ledger": place, "revision": head, "before": head, "current": True}
    assert rollbook("db", "upgrade", "--json").json == told


@pytest.mark.parametrize("command", ["db upgrade", "db check", "rollouts", "doctor"])
def test_a_newer_schema_is_no_matter_for_an_upgrade(rollbook: CommandLine, database_url: str, command: str) -> None:
    upgrade(parse_url(database_url))
    make.rows(database_url, "UPDATE alembic_version SET version_num = '9999' RETURNING 1")
    refused = rollbook(*command.split())
    assert refused.code == 1
    says = refused.out + refused.err
    assert "schema is 9999" in says and "install that one" in says
    assert "rollbook db upgrade" not in says and "unexpected" not in says


def test_database_url_option_goes_before_the_variable(rollbook: CommandLine, tmp_path: Path, place: str) -> None:
    other = tmp_path / "other.sqlite3"
    assert rollbook("db", "upgrade", "--database-url", f"sqlite:///{other}").code == 0
    assert other.exists()
    assert rollbook("db", "check").error_line.startswith(f"there is no ledger at {place};")


def test_secret_key_is_new_each_time_and_usable(rollbook: CommandLine) -> None:
    key = rollbook("secret-key").out.strip()
    assert key != rollbook("secret-key", "--json").json["secret_key"]
    SecretKeys.parse(key)


def test_whole_ledger_passes_replay_and_audit(rollbook: CommandLine, writer: make.Writing) -> None:
    assert rollbook("replay").out == "6 events, 2 rollouts (1 queued, 1 success)\n"
    assert rollbook("replay", "--json").json["head"]["events"] == 6
    whole = {"ok": True, "events": 6, "rollouts": 2, "archived": 0, "more": False}
    compared = rollbook("replay", "--verify")
    assert compared.code == 0
    assert compared.out.startswith("checked 6 events of 2 rollouts: no difference")
    assert rollbook("replay", "--verify", "--json").json == {**whole, "differences": []}
    inspected = rollbook("audit", "verify")
    assert inspected.code == 0
    assert inspected.out.startswith("checked 6 events of 2 rollouts: no finding")
    assert rollbook("audit", "verify", "--json").json == {**whole, "findings": []}


def test_replay_names_a_row_that_is_not_what_its_events_say(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    alter(
        database_url,
        "UPDATE rollouts SET status = 'success' WHERE rollout_id = 'r-2'",
    )
    verdict = rollbook("replay", "--verify")
    assert verdict.code == 1
    assert verdict.err == ""
    assert "rollouts[number 2].status" in verdict.out
    assert verdict.out.endswith("checked 6 events of 2 rollouts: 1 difference\n")
    document = rollbook("replay", "--verify", "--json").json
    assert (document["ok"], document["more"]) == (False, False)
    (difference,) = document["differences"]
    assert (difference["table"], difference["column"]) == ("rollouts", "status")
    assert (difference["expected"], difference["found"]) == ("queued", "success")


@pytest.mark.parametrize(
    ("statement", "table", "column"),
    [
        ("UPDATE admissions SET label = 'other'", "admissions", "label"),
        ("UPDATE outcomes SET err_message = 'other'", "outcomes", "err_message"),
        ("UPDATE rollouts SET head = (SELECT r.head FROM rollouts r WHERE r.number = 2)", "rollouts", "head"),
        ("DELETE FROM scores", "scores", "*"),
        ("UPDATE queue_counts SET queued = 9", "queue_counts", "queued"),
    ],
)
def test_difference_in_any_table_has_a_form_in_json(
    rollbook: CommandLine, writer: make.Writing, database_url: str, statement: str, table: str, column: str
) -> None:
    alter(
        database_url,
        statement,
    )
    differences = rollbook("replay", "--verify", "--json").json["differences"]
    assert (table, column) in {(item["table"], item["column"]) for item in differences}


def test_more_than_twenty_differences_are_told_as_such(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    writer.batch(*(make.admit(f"many-{n}") for n in range(30)))
    alter(
        database_url,
        "UPDATE rollouts SET queue = 'other'",
        "UPDATE events SET payload = replace(payload, 'many', 'few')",
    )
    for command, name in ((("replay", "--verify"), "differences"), (("audit", "verify"), "findings")):
        verdict = rollbook(*command)
        assert verdict.code == 1
        assert verdict.out.endswith(f"checked 36 events of 32 rollouts: 20 {name} and perhaps more\n")
        document = rollbook(*command, "--json").json
        assert document["more"] is True
        assert len(document[name]) == 20


def test_audit_names_an_event_that_was_changed(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    alter(
        database_url,
        "UPDATE events SET payload = replace(payload, 'r-2', 'r-X') WHERE position = 2",
    )
    verdict = rollbook("audit", "verify")
    assert verdict.code == 1
    assert "event 2 (rollout 'r-2', seq 1)" in verdict.out
    findings = rollbook("audit", "verify", "--json").json["findings"]
    assert any(item["position"] == 2 for item in findings)


@pytest.mark.parametrize("command", ["rollouts", "events", "replay", "cancel --all", "show x", "audit verify"])
def test_commands_on_a_ledger_that_is_not_there_say_how_to_make_one(rollbook: CommandLine, command: str) -> None:
    refused = rollbook(*command.split())
    assert refused.code == 1
    assert "make one with `rollbook db upgrade`" in refused.error_line


def test_process_ends_with_the_commands_code_and_one_line(database_url: str) -> None:
    ended = outcome(start("rollouts"))
    assert ended.code == 1
    assert "make one with" in ended.error_line


def test_debug_variable_adds_the_traceback(database_url: str) -> None:
    ended = outcome(start("rollouts", env=environment(ROLLBOOK_DEBUG="1")))
    assert ended.code == 1
    assert ended.err.startswith("Traceback")
    assert "make one with" in ended.err.splitlines()[-1]
