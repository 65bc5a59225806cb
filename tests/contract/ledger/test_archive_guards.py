"""Nothing but an archive's own transaction takes events away, and what it leaves cannot be forged unnoticed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg
import pytest

from rollbook.ledger.archives.checking import check_file_of
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from tests.contract.ledger.archives import OVER, assert_sound, events, fill
from tests.support.ledger import Writing, admit, cancel
from tests.support.sql import rows, shell
from tests.support.tampering import alter

REFUSED = (sqlite3.IntegrityError, asyncpg.PostgresError)
STUB = "INSERT INTO archived_rollouts (number, archive_id, seq, head, first_position, last_position, archiving)"
ARCHIVE = (
    "INSERT INTO archives (archive_id, file, sha256, size_bytes, before_at, made_at, file_rollouts, file_events,"
    " rollouts, events, digest) VALUES"
)
COLUMNS = "position, number, seq, type, version, recorded_at, payload, hash"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.jsonl.gz"


@pytest.fixture
def archived(writer: Writing, database_url: str, path: Path) -> str:
    """A ledger with an archive: rollouts 1 to 20 are in it, 21 to 23 live, and 24 is over and still here."""
    before_at = fill(writer)
    archive(database_url, before_at=before_at, to=path)
    writer.batch(admit("late"), cancel("late"))
    return database_url


def stub(number: int, archive_id: str = "SELECT archive_id FROM archives", *, archiving: int = 1) -> str:
    return (
        f"{STUB} SELECT number, ({archive_id}), seq, head, request_position, result_position, {archiving}"
        f" FROM rollouts WHERE number = {number}"
    )


NEW_ARCHIVE = f"{ARCHIVE} ('mine', 'f', '', 0, 0, 0, 1, 3, 0, 0, '')"


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM events"],
        ["DELETE FROM events WHERE number = 24"],
        ["UPDATE events SET payload = '{}'"],
        [stub(24)],
        [stub(1)],
        [NEW_ARCHIVE, stub(24, "'nobody'")],
        [NEW_ARCHIVE, stub(21, "'mine'")],
        [NEW_ARCHIVE, stub(24, "'mine'", archiving=0)],
        [NEW_ARCHIVE, stub(24, "'mine'"), "UPDATE archived_rollouts SET archiving = 0"],
        [NEW_ARCHIVE, stub(24, "'mine'"), "DELETE FROM archived_rollouts WHERE number = 24"],
        [NEW_ARCHIVE, stub(24, "'mine'"), "DELETE FROM events WHERE number = 23"],
        [NEW_ARCHIVE, NEW_ARCHIVE],
        ["UPDATE archived_rollouts SET archiving = 1"],
        ["UPDATE archived_rollouts SET number = 24, archiving = 1 WHERE number = 20"],
        ["UPDATE archived_rollouts SET head = '' WHERE number = 20"],
        ["DELETE FROM archived_rollouts WHERE number = 20"],
        ["UPDATE archives SET completed_at = NULL"],
        ["UPDATE archives SET file = 'other'"],
        ["UPDATE archives SET rollouts = rollouts + 1"],
        ["DELETE FROM archives"],
        [NEW_ARCHIVE, "UPDATE archives SET sha256 = 'x' WHERE archive_id = 'mine'"],
    ],
)
def test_changes_are_refused(archived: str, statements: list[str]) -> None:
    before = events(archived)
    with shell(archived) as connection:
        connection.rows("BEGIN")
        for statement in statements[:-1]:
            connection.rows(statement)
        with pytest.raises(REFUSED, match=r"append-only|archived|UNIQUE|unique"):
            connection.rows(statements[-1])
        connection.rows("ROLLBACK")
    assert events(archived) == before
    assert_sound(archived)


def forged(*statements: str) -> list[str]:
    return list(statements)


@pytest.mark.parametrize(
    "statements",
    [
        forged("UPDATE archived_rollouts SET seq = seq + 1 WHERE number = 3"),
        forged("UPDATE archived_rollouts SET first_position = 1 WHERE number = 3"),
        forged("UPDATE archived_rollouts SET last_position = last_position + 1 WHERE number = 3"),
        forged("UPDATE archived_rollouts SET head = (SELECT head FROM rollouts WHERE number = 4) WHERE number = 3"),
        forged("UPDATE archived_rollouts SET archiving = 1 WHERE number = 3"),
        forged("UPDATE archived_rollouts SET archive_id = 'other' WHERE number = 3"),
        forged("DELETE FROM archived_rollouts WHERE number = 3"),
        forged("UPDATE rollouts SET seq = seq + 1 WHERE number = 3"),
        forged("UPDATE rollouts SET head = (SELECT head FROM rollouts WHERE number = 4) WHERE number = 3"),
        forged("DELETE FROM rollouts WHERE number = 3"),
        forged("UPDATE rollouts SET scheduler = 's-1' WHERE number = 3"),
        forged("UPDATE archived_rollouts SET seq = -1 WHERE number = 3"),
        forged("UPDATE archived_rollouts SET first_position = 0 WHERE number = 3"),
        forged("UPDATE rollouts SET result_position = NULL WHERE number = 3"),
        forged("UPDATE rollouts SET finished_at = NULL WHERE number = 3"),
        forged("DELETE FROM archives"),
        forged("UPDATE archives SET rollouts = rollouts - 1"),
        forged("UPDATE archives SET digest = sha256"),
        forged(stub(24, archiving=0), "DELETE FROM events WHERE number = 24"),
        forged(
            stub(24, archiving=0),
            "DELETE FROM events WHERE number = 24",
            "UPDATE archives SET rollouts = rollouts + 1, events = events + 3,"
            " file_rollouts = file_rollouts + 1, file_events = file_events + 3",
        ),
        forged(stub(24, archiving=0)),
        forged(
            f"INSERT INTO events ({COLUMNS}) SELECT 1, 1, seq, type, version, recorded_at, payload, hash FROM events"
            " WHERE number = 24 AND seq = 1"
        ),
    ],
)
def test_forgery_is_found(archived: str, statements: list[str]) -> None:
    alter(archived, *statements)
    found = audit(archived)
    assert found != []
    assert {finding.check for finding in found} <= {"archive", "chain", "head", "counts"}


@pytest.mark.parametrize(
    ("statement", "table", "column"),
    [
        (
            "UPDATE rollouts SET head = (SELECT head FROM rollouts WHERE number = 4) WHERE number = 3",
            "rollouts",
            "head",
        ),
        ("UPDATE rollouts SET seq = 1 WHERE number = 3", "rollouts", "seq"),
        ("UPDATE rollouts SET scheduler = 's-1' WHERE number = 3", "rollouts", "scheduler"),
        ("UPDATE rollouts SET result_position = NULL WHERE number = 3", "rollouts", "result_position"),
        ("UPDATE rollouts SET result_position = 1000 WHERE number = 3", "rollouts", "result_position"),
        ("DELETE FROM rollouts WHERE number = 3", "rollouts", "*"),
        ("UPDATE rollouts SET status = 'running' WHERE number = 22", "rollouts", "status"),
        ("DELETE FROM admissions WHERE number = 23", "admissions", "*"),
        ("INSERT INTO phases VALUES (77, 1, 1, 1, 'grading')", "phases", "*"),
    ],
)
def test_replay_holds_rows_to_stubs_and_to_the_events_between_them(
    archived: str, statement: str, table: str, column: str
) -> None:
    alter(archived, statement)
    (found,) = verify_replay(archived)
    assert (found.table, found.column) == (table, column)


def test_replay_names_a_stub_that_is_none(archived: str) -> None:
    alter(archived, "UPDATE archived_rollouts SET seq = -1 WHERE number = 3")
    with pytest.raises(LedgerUnavailable, match=r"rollout number 3 is damaged.*audit verify"):
        verify_replay(archived)


def test_missing_stub_is_a_difference(archived: str) -> None:
    alter(archived, "DELETE FROM archived_rollouts WHERE number = 3")
    assert ("rollouts", "number 3", "*") in {
        (found.table, found.key, found.column) for found in verify_replay(archived)
    }


def test_ledger_that_says_something_else_than_the_file_is_found(archived: str, path: Path) -> None:
    assert check_file_of(archived, path).findings == []
    alter(archived, "UPDATE archived_rollouts SET last_position = last_position + 1 WHERE number = 20")
    assert "does not say" in check_file_of(archived, path).findings[0]
    alter(archived, "DELETE FROM archived_rollouts WHERE number = 20")
    assert "does not say" in check_file_of(archived, path).findings[0]
    alter(archived, "DELETE FROM archived_rollouts", "DELETE FROM archives")
    assert "knows of no archive" in check_file_of(archived, path).findings[0]


def test_stubs_are_few_and_say_all(archived: str) -> None:
    text = (
        "SELECT count(*) FROM archived_rollouts s JOIN rollouts r ON r.number = s.number AND r.seq = s.seq"
        " AND r.head = s.head AND r.request_position = s.first_position AND s.archiving = 0"
    )
    assert rows(archived, text) == [(OVER,)]
