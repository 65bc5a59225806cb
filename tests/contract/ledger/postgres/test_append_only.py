"""The database itself keeps events as they are, whoever writes to it."""

from collections.abc import Iterator

import asyncpg
import pytest

from rollbook.ledger.audit import audit
from tests.support.ledger import Writing, admit, poll, rows
from tests.support.sql import Shell, shell

COLUMNS = "position, number, seq, type, version, recorded_at, payload, hash"
EVENTS = "SELECT * FROM events ORDER BY position"


@pytest.fixture
def anybody(writer: Writing, database_url: str) -> Iterator[Shell]:
    """Anybody's connection to a ledger with three events."""
    writer.batch(admit("r-1"), admit("r-2"), poll("r-1"))
    with shell(database_url) as connection:
        yield connection


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = '{}' WHERE position = 1",
        "UPDATE events SET position = 100 WHERE position = 1",
        "UPDATE events SET seq = seq",
        # One that would change nothing is refused too.
        "UPDATE events SET type = 'x' WHERE false",
        "DELETE FROM events WHERE position = 3",
        "DELETE FROM events",
        "TRUNCATE events",
        "TRUNCATE events, rollouts RESTART IDENTITY CASCADE",
        f"INSERT INTO events ({COLUMNS}) VALUES (1, 1, 1, 'x', 1, 1, '{{}}', '')"
        " ON CONFLICT (position) DO UPDATE SET payload = '{}'",
        f"INSERT INTO events ({COLUMNS}) VALUES (1, 1, 1, 'x', 1, 1, '{{}}', '')"
        " ON CONFLICT (number, seq) DO UPDATE SET payload = '{}'",
        "MERGE INTO events e USING (SELECT 1 AS position) o ON e.position = o.position"
        " WHEN MATCHED THEN UPDATE SET payload = '{}'",
        "MERGE INTO events e USING (SELECT 1 AS position) o ON e.position = o.position WHEN MATCHED THEN DELETE",
        "WITH gone AS (DELETE FROM events RETURNING *) SELECT count(*) FROM gone",
    ],
)
def test_changes_of_events_are_refused(anybody: Shell, database_url: str, statement: str) -> None:
    before = anybody.rows(EVENTS)
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        anybody.rows(statement)
    assert anybody.rows(EVENTS) == before
    assert audit(database_url) == []


@pytest.mark.parametrize(
    "values",
    ["1, 99, 1, 'x', 1, 1, '{}', ''", "99, 1, 1, 'x', 1, 1, '{}', ''"],
    ids=["position that is taken", "seq that is taken"],
)
def test_inserts_over_existing_events_are_refused(anybody: Shell, database_url: str, values: str) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        anybody.rows(f"INSERT INTO events ({COLUMNS}) VALUES ({values})")
    assert anybody.rows(f"INSERT INTO events ({COLUMNS}) VALUES ({values}) ON CONFLICT DO NOTHING RETURNING 1") == []
    assert audit(database_url) == []


def test_temporary_table_of_the_same_name_lifts_no_guard(anybody: Shell, database_url: str) -> None:
    anybody.rows("CREATE TEMP TABLE archived_rollouts (number bigint, archiving integer)")
    anybody.rows("INSERT INTO archived_rollouts VALUES (1, 1)")
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        anybody.rows("DELETE FROM events WHERE number = 1")
    assert audit(database_url) == []


def test_new_events_are_taken(writer: Writing, anybody: Shell, database_url: str) -> None:
    writer.do(poll("r-2"))
    assert rows(database_url, "SELECT max(position) FROM events") == [(4,)]
