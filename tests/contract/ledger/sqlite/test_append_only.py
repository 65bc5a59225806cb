"""The database itself keeps events as they are, whoever writes to it."""

import sqlite3
from collections.abc import Iterator

import pytest

from rollbook.ledger.audit import audit
from tests.support.ledger import Writing, admit, plain, poll, rows

COLUMNS = "position, number, seq, type, version, recorded_at, payload, hash"


@pytest.fixture
def shell(writer: Writing, database_url: str) -> Iterator[sqlite3.Connection]:
    """Anybody's connection to a ledger with three events."""
    writer.batch(admit("r-1"), admit("r-2"), poll("r-1"))
    with plain(database_url) as connection:
        yield connection


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = '{}' WHERE position = 1",
        "UPDATE events SET position = 100 WHERE position = 1",
        "UPDATE events SET seq = seq",
        "UPDATE OR REPLACE events SET position = 2 WHERE position = 1",
        "UPDATE OR IGNORE events SET type = 'x'",
        "DELETE FROM events WHERE position = 3",
        "DELETE FROM events",
        f"INSERT INTO events ({COLUMNS}) SELECT {COLUMNS} FROM events WHERE position = 1",
        f"INSERT OR REPLACE INTO events ({COLUMNS}) VALUES (1, 1, 1, 'x', 1, 1, '{{}}', x'00')",
        f"INSERT OR REPLACE INTO events ({COLUMNS}) VALUES (99, 1, 1, 'x', 1, 1, '{{}}', x'00')",
        f"INSERT OR REPLACE INTO events ({COLUMNS}) VALUES (3, 99, 1, 'x', 1, 1, '{{}}', x'00')",
        f"REPLACE INTO events ({COLUMNS}) VALUES (2, 2, 1, 'x', 1, 1, '{{}}', x'00')",
        f"INSERT OR IGNORE INTO events ({COLUMNS}) VALUES (1, 1, 1, 'x', 1, 1, '{{}}', x'00')",
        f"INSERT INTO events ({COLUMNS}) VALUES (1, 1, 1, 'x', 1, 1, '{{}}', x'00') "
        "ON CONFLICT (position) DO UPDATE SET payload = '{}'",
        f"INSERT INTO events ({COLUMNS}) VALUES (0, 99, 1, 'x', 1, 1, '{{}}', x'00')",
        f"INSERT INTO events ({COLUMNS}) VALUES (-5, 99, 1, 'x', 1, 1, '{{}}', x'00')",
    ],
)
def test_changes_of_events_are_refused(shell: sqlite3.Connection, database_url: str, statement: str) -> None:
    before = shell.execute("SELECT * FROM events ORDER BY position").fetchall()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        shell.execute(statement)
    assert shell.execute("SELECT * FROM events ORDER BY position").fetchall() == before
    assert audit(database_url) == []


def test_refusal_holds_inside_a_transaction_with_recursive_triggers_off_and_on(shell: sqlite3.Connection) -> None:
    for setting in (0, 1):
        shell.execute(f"PRAGMA recursive_triggers = {setting}")
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            shell.execute("DELETE FROM events")
        shell.execute("COMMIT")
    assert shell.execute("SELECT count(*) FROM events").fetchone() == (3,)


def test_new_events_are_taken(writer: Writing, shell: sqlite3.Connection, database_url: str) -> None:
    writer.do(poll("r-2"))
    assert rows(database_url, "SELECT max(position) FROM events") == [(4,)]
