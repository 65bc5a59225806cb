"""PostgreSQL's guards look at the ledger's own tables, whatever a session puts before them."""

from __future__ import annotations

import asyncpg
import pytest

from tests.contract.ledger.archives import events, fill
from tests.support.ledger import Writing
from tests.support.sql import shell

SHADOWS = (
    "CREATE TEMPORARY TABLE archived_rollouts AS SELECT number, 1 AS archiving FROM rollouts",
    "SET search_path = pg_temp, public",
)


@pytest.mark.parametrize("settings", [SHADOWS, SHADOWS[:1], ("SET plpgsql.check_asserts = off", *SHADOWS)])
def test_temporary_table_opens_nothing(writer: Writing, database_url: str, settings: tuple[str, ...]) -> None:
    fill(writer)
    before = events(database_url)
    with shell(database_url) as connection:
        for statement in settings:
            connection.rows(statement)
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            connection.rows("DELETE FROM public.events WHERE number = 1")
    assert events(database_url) == before


@pytest.mark.parametrize("table", ["events", "archived_rollouts", "archives"])
def test_truncate_is_refused(writer: Writing, database_url: str, table: str) -> None:
    fill(writer)
    with shell(database_url) as connection, pytest.raises(asyncpg.PostgresError, match="TRUNCATE refused"):
        connection.rows(f"TRUNCATE {table}")
