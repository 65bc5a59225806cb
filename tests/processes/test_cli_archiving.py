"""`rollbook ledger`, `rollbook replay --until` and `rollbook backup`, as an operator types them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.urls import POSTGRES
from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import CommandLine, outcome, start
from tests.support.sql import rows
from tests.support.tampering import alter


@pytest.fixture
def rollbook(
    database_url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    monkeypatch.chdir(tmp_path)
    return CommandLine(database_url, capfd)


@pytest.fixture
def writer(database_url: str) -> Iterator[make.Writing]:
    """`r-1` succeeded, `r-2` waits."""
    with make.writing(database_url) as writer:
        writer.batch(make.scheduler(), make.admit("r-1", label="six"), make.admit("r-2"))
        writer.do(make.claim(limit=1))
        writer.do(make.enter("r-1"))
        writer.do(make.finish("r-1"))
        yield writer


def archive(rollbook: CommandLine, *, before: str = "-1d", to: str = "old.jsonl.gz") -> str:
    done = rollbook("ledger", "archive", "--before", before, "--to", to)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_archive_moves_what_is_over_and_can_be_verified(
    rollbook: CommandLine, writer: make.Writing, database_url: str, tmp_path: Path
) -> None:
    said = archive(rollbook)
    (count,) = rows(database_url, "SELECT seq FROM rollouts WHERE rollout_id = 'r-1'")[0]
    assert said.startswith(f"moved {count} events of 1 rollout to old.jsonl.gz (")
    lines = gzip.decompress((tmp_path / "old.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) == count + 2
    whole = rollbook("ledger", "verify-archive", "old.jsonl.gz")
    assert whole.out == (
        f"checked {count} events of 1 rollout: every event is as it was written, and the ledger says so\n"
    )
    document = rollbook("ledger", "verify-archive", "old.jsonl.gz", "--json").json
    assert (document["ok"], document["events"], document["findings"]) == (True, count, [])
    assert rollbook("audit", "verify").out == (
        "checked 1 event of 1 rollout and 1 archived rollout: no finding, every event is as it was written\n"
    )
    assert rollbook("replay", "--verify", "--json").json["archived"] == 1
    assert rollbook("replay", "--until", "1").out == (
        "no events up to then are left here, 1 rollout\nhow 1 rollout stood is in archives\n"
    )
    assert rollbook("replay").out == f"{count + 1} events, 2 rollouts (1 queued, 1 success); 1 of them archived\n"


def test_archive_with_nothing_to_do_says_so_and_makes_no_file(
    rollbook: CommandLine, writer: make.Writing, tmp_path: Path
) -> None:
    said = archive(rollbook, before="2001-01-01")
    assert said == "nothing to archive: no rollout that is still here ended before then\n"
    assert list(tmp_path.glob("old*")) == []


def test_archived_rollout_is_shown_with_where_the_rest_is(rollbook: CommandLine, writer: make.Writing) -> None:
    before = rollbook("show", "r-1", "--json").json
    archive(rollbook)
    shown = rollbook("show", "r-1")
    assert "archived       old.jsonl.gz (archive " in shown.out
    assert "label          six" in shown.out
    after = rollbook("show", "r-1", "--json").json
    assert after["archived"]["file"] == "old.jsonl.gz"
    assert (after.pop("request"), after.pop("result"), after.pop("archived")["file"]) == (None, None, "old.jsonl.gz")
    assert after == {key: before[key] for key in after}
    refused = rollbook("events", "r-1")
    assert refused.code == 1
    assert "are archived in old.jsonl.gz (archive " in refused.error_line
    assert len(rollbook("events").out.splitlines()) == 1


def test_changed_archive_is_found_with_exit_code_1(rollbook: CommandLine, writer: make.Writing, tmp_path: Path) -> None:
    archive(rollbook)
    path = tmp_path / "old.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"six"', b'"ten"')))
    for options in ((), ("--alone",)):
        verdict = rollbook("ledger", "verify-archive", "old.jsonl.gz", *options)
        assert verdict.code == 1
        assert ("was altered" in verdict.out) == bool(options)


def test_forged_stub_is_found_by_the_commands(rollbook: CommandLine, writer: make.Writing, database_url: str) -> None:
    archive(rollbook)
    alter(database_url, "UPDATE archived_rollouts SET seq = seq - 1")
    assert rollbook("audit", "verify").code == 1
    assert rollbook("replay", "--verify").code == 1
    assert rollbook("ledger", "verify-archive", "old.jsonl.gz").code == 1


def test_rollout_is_shown_as_it_was(rollbook: CommandLine, writer: make.Writing) -> None:
    then = rollbook("replay", "--until", "4", "r-1")
    assert then.code == 0
    lines = dict(line.split(None, 1) for line in then.out.splitlines())
    assert (lines["status"], lines["attempt"], lines["label"]) == ("running", "1 (1 of 3 used up)", "six")
    assert "position 4, seq 3" in lines["last"]
    document = rollbook("replay", "--until", "1", "r-1", "--json").json
    assert (document["status"], document["attempt"], document["position"], document["seq"]) == ("queued", 0, 1, 1)
    now = rollbook("replay", "--until", "-1s", "r-1", "--json").json
    (listed,) = [item for item in rollbook("rollouts", "--json").json_lines if item["rollout_id"] == "r-1"]
    assert {key: now[key] for key in listed} == listed


def test_queues_are_shown_as_they_were(rollbook: CommandLine, writer: make.Writing) -> None:
    then = rollbook("replay", "--until", "3")
    assert then.out.splitlines()[0] == "up to position 3: 3 events, 2 rollouts (1 queued, 1 running)"
    assert then.out.splitlines()[-1].split() == ["default", "1", "1"]
    assert rollbook("replay", "--until", "0").out == "no events up to then, 0 rollouts\n"
    document = rollbook("replay", "--until", "2023-11-14T22:13:20", "--json").json
    assert document["statuses"] == {"queued": 1, "success": 1}
    assert document["queues"] == {"default": {"queued": 1, "running": 0}}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("replay", "--until", "soon"), 2, "'soon' is no time; write 2030-01-31T12:00"),
        (("replay", "r-1"), 2, "say until when with --until"),
        (("replay", "--until", "3", "--verify"), 2, "leave out --until"),
        (("replay", "--until", "1", "r-2"), 1, "rollout 'r-2' was not admitted yet"),
        (("replay", "--until", "1", "nobody"), 1, "no rollout 'nobody'"),
        (("ledger", "archive", "--before", "soon", "--to", "x"), 2, "--before: 'soon' is no time"),
        (("ledger", "archive", "--before", "-1d"), 2, "--to"),
        (("ledger", "archive", "--before", "-1d", "--to", "nowhere/x"), 1, "check the path"),
        (("ledger", "verify-archive", "nothing.gz"), 2, "does not exist"),
        (("ledger",), 2, "Missing command"),
    ],
)
def test_wrong_use_is_one_line(
    rollbook: CommandLine, writer: make.Writing, arguments: tuple[str, ...], code: int, says: str
) -> None:
    refused = rollbook(*arguments)
    assert (refused.code, refused.out) == (code, "")
    assert says in refused.error_line


def test_backup_copies_sqlite_and_names_postgres_own_tool(
    rollbook: CommandLine, writer: make.Writing, database: str, database_url: str, tmp_path: Path
) -> None:
    done = rollbook("backup", "copy.sqlite3")
    if database == POSTGRES:
        assert done.code == 1
        assert "pg_dump --format=custom --file=copy.sqlite3 " in done.error_line
        return
    assert done.out.startswith("copy.sqlite3: 7 events up to position 7, checked\n")
    assert f"Keep {tmp_path / 'secret.key'} elsewhere" in done.out
    assert audit(f"sqlite:///{tmp_path}/copy.sqlite3") == []
    assert rollbook("backup", "copy.sqlite3").code == 1
    document = rollbook("backup", "again.sqlite3", "--json").json
    assert (document["events"], document["secret_key"]) == (7, str(tmp_path / "secret.key"))


def test_archive_that_is_told_to_stop_goes_on_with_the_next(
    rollbook: CommandLine, writer: make.Writing, database_url: str, tmp_path: Path
) -> None:
    names = [f"many-{number}" for number in range(300)]
    writer.batch(*(make.admit(name) for name in names))
    writer.batch(make.cancel(*names))
    command = ("ledger", "archive", "--before", "-1d", "--to", "old.jsonl.gz")
    stopped = start(*command)
    stopped.terminate()
    outcome(stopped)
    assert audit(database_url) == []
    again = rollbook(*command)
    assert again.code == 0
    assert audit(database_url) == []
    assert rows(database_url, "SELECT count(*) FROM archived_rollouts") == [(301,)]
