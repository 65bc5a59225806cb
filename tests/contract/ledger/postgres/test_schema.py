"""Migrations of a database on a server: what it must be able to hold, and who else may be at work there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest

from rollbook.ledger.postgres import migrating
from rollbook.ledger.refusals import LedgerUnavailable, SchemaError
from rollbook.ledger.schema import check, downgrade, upgrade
from rollbook.ledger.urls import parse_url
from tests.support.ledger import admit, writing
from tests.support.postgres import execute, private_server, shared_server
from tests.support.schemas import objects


@pytest.fixture
def latin_url() -> Iterator[str]:
    """A database that holds Western European texts only."""
    server, name = shared_server(), f"rollbook_test_{uuid4().hex}"
    execute(
        server.url(), f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'"
    )
    yield server.url(name)
    execute(server.url(), f"DROP DATABASE {name} WITH (FORCE)")


def test_database_that_cannot_hold_all_texts_is_refused(latin_url: str) -> None:
    with pytest.raises(SchemaError, match=r"LATIN1.*ENCODING 'UTF8'"):
        upgrade(parse_url(latin_url))
    assert objects(latin_url) == {}


def test_views_that_a_migration_changes_keep_what_was_granted_on_them(database_url: str) -> None:
    downgrade(parse_url(database_url), "0006")
    execute(database_url, "GRANT SELECT ON rollout_summary TO PUBLIC")
    upgrade(parse_url(database_url))
    granted = "SELECT has_table_privilege('public', '{}', 'SELECT')"
    found = [execute(database_url, granted.format(name)) for name in ("rollout_summary", "reward_outcomes")]
    assert found == [[(True,)], [(False,)]]


def test_tables_of_an_extension_are_no_other_programs() -> None:
    with private_server(fsync="off") as server:
        url = server.superuser_url()
        execute(url, "CREATE TABLE brought (id integer)")
        # As if it had come with one that every database has.
        execute(url, "ALTER EXTENSION plpgsql ADD TABLE brought")
        upgrade(parse_url(url))
        check(parse_url(url))


async def test_migration_that_waits_too_long_for_a_table_in_use_changes_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_WAIT_SEC", 1)
    before = objects(database_url)
    reader = await asyncpg.connect(database_url)
    try:
        async with reader.transaction():
            await reader.fetch("SELECT * FROM rollouts")
            with pytest.raises(LedgerUnavailable, match="nothing was changed, try again"):
                await asyncio.to_thread(downgrade, parse_url(database_url), "base")
    finally:
        await reader.close()
    assert objects(database_url) == before
    with writing(database_url) as writer:
        assert writer.do(admit("r-1")).number == 1
