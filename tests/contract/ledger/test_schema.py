"""Migrations: what they make is what is declared, whole or not at all, up and down with data."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import rollbook_migrations
from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.schema import SchemaError, check, downgrade, revision, upgrade
from rollbook.ledger.sqlite.snapshot import GUARDS
from rollbook.ledger.urls import parse_url
from rollbook_projections.tables import metadata
from rollbook_projections.views import VIEWS
from tests.support.ledger import admit, claim, finish, ledger_path, plain, rows, scheduler, writing

OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'alembic_%'"


@pytest.fixture
def url(database_url: str) -> sa.URL:
    return parse_url(database_url)


def objects(path: Path, kinds: tuple[str, ...]) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(OBJECTS).fetchall()
    return {name: " ".join(text.split()) for kind, name, text in found if kind in kinds}


def test_migrated_schema_is_the_declared_one(url: sa.URL) -> None:
    upgrade(url)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_name": lambda name, kind, parents: True}
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_tables_and_partial_indexes_agree_to_the_letter(url: sa.URL, tmp_path: Path) -> None:
    upgrade(url)
    declared = tmp_path / "declared.sqlite3"
    engine = sa.create_engine(f"sqlite:///{declared}")
    metadata.create_all(engine)
    engine.dispose()
    migrated = objects(ledger_path(str(url)), ("table", "index"))
    assert migrated == objects(declared, ("table", "index"))
    assert sum("WHERE" in text for text in migrated.values()) == 6


def test_views_and_guards_are_there(url: sa.URL) -> None:
    upgrade(url)
    assert set(objects(ledger_path(str(url)), ("view",))) == set(VIEWS)
    assert set(objects(ledger_path(str(url)), ("trigger",))) == set(GUARDS)


@pytest.mark.parametrize(
    "condition, index",
    [
        ("status = 'queued' AND scheduler IS NULL AND queue IN ('a') ORDER BY number LIMIT 5", "rollouts_claimable"),
        ("scheduler IS NOT NULL AND scheduler = 's'", "rollouts_owned"),
        ("finished_at IS NULL ORDER BY number", "rollouts_live"),
        ("finished_at IS NOT NULL AND finished_at >= 5", "rollouts_finished"),
        ("rollout_id >= 'a' AND rollout_id < 'b'", "sqlite_autoindex_rollouts_1"),
    ],
)
def test_conditions_of_the_ledger_use_their_index(database_url: str, url: sa.URL, condition: str, index: str) -> None:
    upgrade(url)
    plan = " ".join(
        str(row) for row in rows(database_url, f"EXPLAIN QUERY PLAN SELECT * FROM rollouts WHERE {condition}")
    )
    assert index in plan


def test_up_down_up_with_data(database_url: str, url: sa.URL) -> None:
    with writing(database_url) as writer:
        writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(300)))
        writer.do(claim())
        writer.do(finish("r-0"))
    assert revision(url) == rollbook_migrations.HEAD
    downgrade(url, "base")
    assert objects(ledger_path(database_url), ("table", "index", "view", "trigger")) == {}
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        check(url)
    with writing(database_url) as writer:
        assert writer.do(admit("r-0")).number == 1
    assert audit(database_url) == []


class Interrupted(Exception):
    """What the test throws into a migration."""


@contextmanager
def at_statement(start: str, act: Any) -> Iterator[None]:
    """Run ``act`` when any engine is about to execute a statement that starts so."""

    def before(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(start):
            act()

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


def fail() -> None:
    raise Interrupted


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE rollouts", "CREATE INDEX", "CREATE TRIGGER", "INSERT INTO alembic"]
)
def test_failed_upgrade_leaves_nothing_and_can_be_repeated(url: sa.URL, statement: str) -> None:
    with at_statement(f"\n{statement}" if "TABLE" in statement else statement, fail), pytest.raises(Interrupted):
        upgrade(url)
    assert objects(ledger_path(str(url)), ("table", "index", "view", "trigger")) == {}
    assert revision(url) is None
    upgrade(url)
    check(url)


def test_failed_downgrade_leaves_everything(database_url: str, url: sa.URL) -> None:
    with writing(database_url) as writer:
        writer.do(admit("r-1"))
    with at_statement("\nDROP TABLE events", fail), pytest.raises(Interrupted):
        downgrade(url, "base")
    check(url)
    assert audit(database_url) == []
    assert rows(database_url, "SELECT count(*) FROM events") == [(1,)]


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from rollbook.ledger.urls import parse_url
from rollbook.ledger.schema import upgrade

@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if statement.startswith("CREATE TRIGGER"):
        os.kill(os.getpid(), signal.SIGKILL)

upgrade(parse_url(sys.argv[1]))
"""


def test_upgrade_killed_in_the_middle_leaves_nothing_and_can_be_repeated(database_url: str, url: sa.URL) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, database_url], env=os.environ, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert objects(ledger_path(database_url), ("table", "index", "view", "trigger")) == {}
    upgrade(url)
    check(url)


def test_upgrades_at_once_make_one_schema(database_url: str, url: sa.URL) -> None:
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def run() -> None:
        start.wait(30)
        try:
            upgrade(url)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert rows(database_url, "SELECT count(*) FROM ledger_head") == [(1,)]


def test_repeated_upgrade_changes_nothing(database_url: str, url: sa.URL) -> None:
    with writing(database_url) as writer:
        writer.do(admit("r-1"))
    upgrade(url)
    assert rows(database_url, "SELECT count(*) FROM events") == [(1,)]


async def test_missing_ledger_is_made_only_where_asked_for(database_url: str) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        await Ledger.open(database_url, migrate=False)
    assert not ledger_path(database_url).exists()
    ledger = await Ledger.open(database_url)
    await ledger.close()
    again = await Ledger.open(database_url, migrate=False)
    await again.close()


async def test_schema_of_another_version_is_refused_with_the_command(database_url: str, url: sa.URL) -> None:
    upgrade(url)
    with plain(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match=r"9999.*rollbook db upgrade"):
        await Ledger.open(database_url, migrate=False)


def test_file_that_is_no_database_is_named(database_url: str, url: sa.URL) -> None:
    ledger_path(database_url).write_bytes(b"certainly no database " * 100)
    with pytest.raises(SchemaError, match="--database-url"):
        check(url)
    with pytest.raises(SchemaError, match="--database-url"):
        upgrade(url)


def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LedgerUnavailable, match="folder"):
        upgrade(parse_url(f"sqlite:///{tmp_path}/file/ledger.sqlite3"))


def test_path_with_special_characters_works(tmp_path: Path) -> None:
    address = sa.URL.create("sqlite", database=f"{tmp_path}/a b%20c?d#e/ledger.sqlite3")
    upgrade(address)
    check(address)
