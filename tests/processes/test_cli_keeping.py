"""Commands that keep a ledger, and the errors that every command has in common."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook_migrations
from rollbook.cli.stack import listen
from rollbook.ledger.secrets import SecretKeys
from tests.support import ledger as make
from tests.support.commands import CommandLine, environment, outcome, start

SERVE = ("serve", "--no-scheduler", "--queue", "q")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def database_url(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{path}"
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", url)
    return url


@pytest.fixture
def rollbook(database_url: str, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(database_url, capfd)


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    with make.writing(database_url) as writer:
        writer.batch(make.scheduler(), make.admit("r-1"), make.admit("r-2"))
        writer.batch(make.claim(limit=1))
        writer.batch(make.finish("r-1"))
        yield writer


def test_upgrade_makes_a_ledger_and_check_finds_it(rollbook: CommandLine, path: Path) -> None:
    missing = rollbook("db", "check")
    assert missing.code == 1
    assert missing.error_line == f"there is no ledger at {path}; make one with `rollbook db upgrade`"
    assert rollbook("db", "upgrade").out == f"{path}: schema {rollbook_migrations.HEAD} is current\n"
    assert rollbook("db", "check", "--json").json == {
        "ledger": str(path),
        "revision": rollbook_migrations.HEAD,
        "current": True,
    }


def test_database_url_option_goes_before_the_variable(rollbook: CommandLine, tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.sqlite3"
    assert rollbook("db", "upgrade", "--database-url", f"sqlite:///{other}").code == 0
    assert other.exists()
    assert not path.exists()


def test_secret_key_is_new_each_time_and_usable(rollbook: CommandLine) -> None:
    key = rollbook("secret-key").out.strip()
    assert key != rollbook("secret-key", "--json").json["secret_key"]
    SecretKeys.parse(key)


def test_whole_ledger_passes_replay_and_audit(rollbook: CommandLine, writer: make.Writing) -> None:
    assert rollbook("replay").out == "6 events, 2 rollouts (1 queued, 1 success)\n"
    assert rollbook("replay", "--json").json["head"]["events"] == 6
    whole = {"ok": True, "events": 6, "rollouts": 2, "more": False}
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
    with make.plain(database_url) as db:
        db.execute("UPDATE rollouts SET status = 'success' WHERE rollout_id = 'r-2'")
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
        ("UPDATE rollouts SET head = x'00' WHERE number = 1", "rollouts", "head"),
        ("DELETE FROM scores", "scores", "*"),
        ("UPDATE queue_counts SET queued = 9", "queue_counts", "queued"),
    ],
)
def test_difference_in_any_table_has_a_form_in_json(
    rollbook: CommandLine, writer: make.Writing, database_url: str, statement: str, table: str, column: str
) -> None:
    with make.plain(database_url) as db:
        db.execute(statement)
    differences = rollbook("replay", "--verify", "--json").json["differences"]
    assert (table, column) in {(item["table"], item["column"]) for item in differences}


def test_more_than_twenty_differences_are_told_as_such(
    rollbook: CommandLine, writer: make.Writing, database_url: str
) -> None:
    writer.batch(*(make.admit(f"many-{n}") for n in range(30)))
    with make.plain(database_url) as db:
        db.execute("UPDATE rollouts SET queue = 'other'")
        db.execute("DROP TRIGGER events_no_update")
        db.execute("UPDATE events SET payload = replace(payload, 'many', 'few')")
    for command, name in ((("replay", "--verify"), "differences"), (("audit", "verify"), "findings")):
        verdict = rollbook(*command)
        assert verdict.code == 1
        assert verdict.out.endswith(f"checked 36 events of 32 rollouts: 20 {name} and perhaps more\n")
        document = rollbook(*command, "--json").json
        assert document["more"] is True
        assert len(document[name]) == 20


def test_audit_names_an_event_that_was_changed(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    with make.plain(database_url) as db:
        db.execute("DROP TRIGGER events_no_update")
        db.execute("UPDATE events SET payload = replace(payload, 'r-2', 'r-X') WHERE position = 2")
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


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "it looks like sqlite:///"),
        ("mysql://host/name", "use sqlite:///"),
        ("sqlite://", "a ledger needs a file"),
    ],
)
@pytest.mark.parametrize("command", [("rollouts",), ("db", "upgrade"), SERVE])
def test_unusable_database_url_is_one_line(
    rollbook: CommandLine, command: tuple[str, ...], url: str, says: str
) -> None:
    refused = rollbook(*command, "--database-url", url)
    assert refused.code == 1
    assert says in refused.error_line


def test_file_that_is_no_database_is_one_line(rollbook: CommandLine, path: Path) -> None:
    path.write_text("these are notes, no database\n" * 100)
    refused = rollbook("rollouts")
    assert refused.code == 1
    assert "is not an SQLite database; name another file with --database-url" in refused.error_line


TOUCHING = [("rollouts",), ("db", "upgrade"), ("db", "check"), ("audit", "verify"), SERVE]


@pytest.mark.parametrize("command", TOUCHING)
def test_database_of_another_program_is_left_alone(rollbook: CommandLine, path: Path, command: tuple[str, ...]) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (text)")
        db.execute("CREATE TABLE alembic_version (version_num)")
        db.execute("INSERT INTO alembic_version VALUES ('0001')")
    refused = rollbook(*command)
    assert refused.code == 1
    assert refused.error_line == (f"{path} is an SQLite database, but no ledger; name another file with --database-url")
    assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (2,)
    db.close()


@pytest.mark.parametrize("command", TOUCHING)
def test_folder_in_place_of_the_database_is_one_line(
    rollbook: CommandLine, path: Path, command: tuple[str, ...]
) -> None:
    path.mkdir()
    refused = rollbook(*command)
    assert refused.code == 1
    assert refused.error_line == (
        f"{path} is a folder; name a file in it with --database-url sqlite:///{path}/ledger.sqlite3"
    )


def test_empty_file_becomes_a_ledger(rollbook: CommandLine, path: Path) -> None:
    path.touch()
    assert rollbook("db", "upgrade").code == 0
    assert rollbook("db", "check").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such-command",), "No such command 'no-such-command'; see `rollbook --help`"),
        (("rollouts", "--no-such-option"), "No such option: --no-such-option"),
        (("rollouts", "--status", "odd"), "--status"),
        (("show",), "Missing argument"),
        (("db",), "Missing command; see `rollbook db --help`"),
        (("serve", "flow.py", "--port", "70000"), "--port"),
        (("serve", "flow.py", "--runners", "0"), "--runners"),
        (("serve", "flow.py", "--on-shutdown", "explode"), "--on-shutdown"),
        (("serve", "flow.py", "--result-wait", "0"), "Invalid value for --result-wait"),
        (("serve", "flow.py", "--result-wait", "nan"), "Invalid value for --result-wait"),
        (("serve", "flow.py", "--lease-timeout", "30"), "Invalid value for --lease-timeout"),
        (("serve", "flow.py", "--lease-timeout", "inf"), "Invalid value for --lease-timeout"),
        (("serve", "flow.py", "--queue", " "), "Invalid value for --queue"),
        (("serve", "flow.py", "--api-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (("serve", "--no-scheduler"), "Invalid value for --queue"),
        (("serve",), "Invalid value for ENTRYPOINT"),
        (("scheduler",), "Missing argument 'ENTRYPOINT'"),
    ],
)
def test_wrong_use_is_one_line_with_exit_code_2(rollbook: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    refused = rollbook(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.error_line


def test_blank_api_key_is_refused(rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_KEY", "  ")
    refused = rollbook("serve", "flow.py", "--api-key-env", "TRAINER_KEY")
    assert refused.code == 2
    assert "--api-key-env: TRAINER_KEY is blank" in refused.error_line


def test_entrypoint_that_is_none_is_one_line(rollbook: CommandLine) -> None:
    for command in ("serve", "scheduler"):
        refused = rollbook(command, "not an entrypoint")
        assert refused.code == 1
        assert "pass the path of a .py file, or module:name" in refused.error_line


def test_taken_port_is_one_line_naming_the_option(rollbook: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = rollbook(*SERVE, "--port", str(port))
    assert refused.code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in refused.error_line
    assert "choose another --port" in refused.error_line


def test_port_that_is_given_back_in_a_moment_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        giving_back = threading.Timer(0.1, taken.close)
        giving_back.start()
        listen("127.0.0.1", port, limit_sec=60).close()
        giving_back.join()


def test_address_that_is_none_is_one_line_naming_the_option(rollbook: CommandLine) -> None:
    refused = rollbook(*SERVE, "--host", "no.such.host.invalid")
    assert refused.code == 1
    assert "--host" in refused.error_line


def test_bad_secret_key_ends_serve_before_anything_starts(
    rollbook: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_SECRET_KEY", "dG9vIHNob3J0")
    refused = rollbook(*SERVE)
    assert refused.code == 1
    assert "make one with `rollbook secret-key`" in refused.error_line


def test_no_command_shows_the_help(rollbook: CommandLine) -> None:
    helped = rollbook()
    assert helped.code == 0
    for name in ("serve", "scheduler", "demo", "rollouts", "show", "events", "cancel", "replay", "audit", "db"):
        assert f"  {name} " in helped.out


def test_missing_extra_is_one_line_that_names_it(tmp_path: Path) -> None:
    script = "import sys; sys.modules['typer'] = None; from rollbook.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == ('rollbook: the command line needs typer; install it with: pip install "rollbook[server]"\n')


def test_process_ends_with_the_commands_code_and_one_line(database_url: str) -> None:
    ended = outcome(start("rollouts"))
    assert ended.code == 1
    assert "make one with" in ended.error_line


def test_debug_variable_adds_the_traceback(database_url: str) -> None:
    ended = outcome(start("rollouts", env=environment(ROLLBOOK_DEBUG="1")))
    assert ended.code == 1
    assert ended.err.startswith("Traceback")
    assert "make one with" in ended.err.splitlines()[-1]
