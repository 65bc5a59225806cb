"""Errors that every command has in common, and a file in the ledger's place that is none: one line, with what to do."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollbook.cli.stack import listen
from rollbook.settings import DATABASE_VARIABLE
from tests.support.commands import CommandLine

SERVE = ("serve", "--no-scheduler", "--queue", "q")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def rollbook(path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    url = f"sqlite:///{path}"
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    return CommandLine(url, capfd)


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


@pytest.mark.parametrize("more", [(), ("--queue", "q")])
@pytest.mark.parametrize("entrypoint", ["not an entrypoint", "flow.py:"])
def test_entrypoint_that_is_none_is_a_wrong_argument(
    rollbook: CommandLine, path: Path, entrypoint: str, more: tuple[str, ...]
) -> None:
    for command in ("serve", "scheduler"):
        refused = rollbook(command, entrypoint, *more)
        assert refused.code == 2
        assert f"ENTRYPOINT: '{entrypoint}' is no entrypoint" in refused.error_line
        assert "pass the path of a .py file with a workflow, or file.py:name or module:name" in refused.error_line
    assert not path.exists()


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
