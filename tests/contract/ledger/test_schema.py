"""Migrations: what they make is what is declared, whole or not at all, up and down with data."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import rollbook_migrations
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.database import database_of
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.schema import SchemaError, check, downgrade, revision, upgrade
from rollbook.ledger.urls import parse_url
from rollbook_projections.tables import metadata
from rollbook_projections.views import VIEWS, view_sql
from tests.support.databases import empty_place
from tests.support.histories import one_of_each_ending, recorded_and_scored_anew
from tests.support.ledger import admit, claim, finish, rows, scheduler, writing
from tests.support.schemas import TABLES, names, objects, with_connection

REVISIONS = [
    script.revision for script in ScriptDirectory(str(Path(rollbook_migrations.__file__).parent)).walk_revisions()
][::-1]
PREVIOUS = dict(zip(REVISIONS, ["base", *REVISIONS], strict=False))


@pytest.fixture
def url(empty_url: str) -> sa.URL:
    return parse_url(empty_url)


def test_last_revision_is_the_one_that_this_code_works_with() -> None:
    assert REVISIONS[-1] == rollbook_migrations.HEAD


def test_migrated_schema_is_the_declared_one(database_url: str) -> None:
    def compared(connection: sa.Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))

    assert with_connection(database_url, compared) == []


def test_tables_indexes_and_views_agree_to_the_letter(database: str, database_url: str, tmp_path: Path) -> None:
    def declare(connection: sa.Connection) -> None:
        metadata.create_all(connection)
        for name, text in VIEWS.items():
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {view_sql(text, database)}")

    (tmp_path / "declared").mkdir()
    with empty_place(database, tmp_path / "declared") as declared_url:
        with_connection(declared_url, declare)
        declared = objects(declared_url)
    migrated = objects(database_url, *TABLES, "view")
    assert migrated == declared
    assert sum(kind == "index" and "WHERE" in text for (kind, _), text in migrated.items()) == 6
    assert sum(kind == "view" for kind, _ in migrated) == len(VIEWS)


def test_guards_are_there(database_url: str) -> None:
    with database_of(parse_url(database_url)).snapshot() as snapshot:
        assert list(snapshot.missing_guards()) == []
    assert names(database_url, "trigger")


def test_up_down_up_with_data(database_url: str) -> None:
    url = parse_url(database_url)
    with writing(database_url) as writer:
        writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(300)))
        writer.do(claim())
        writer.do(finish("r-0"))
    assert revision(url) == rollbook_migrations.HEAD
    downgrade(url, "base")
    assert objects(database_url) == {}
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        check(url)
    upgrade(url)
    with writing(database_url) as writer:
        assert writer.do(admit("r-0")).number == 1
    assert audit(database_url) == []


def test_each_step_is_taken_back_by_its_own_way_down(empty_url: str, url: sa.URL) -> None:
    found = {"base": objects(empty_url)}
    for step in REVISIONS:
        upgrade(url, step)
        found[step] = objects(empty_url)
        assert found[step] != found[PREVIOUS[step]]
    for step in reversed(REVISIONS):
        downgrade(url, PREVIOUS[step])
        assert objects(empty_url) == found[PREVIOUS[step]], step


@pytest.mark.parametrize("step", REVISIONS[1:])
def test_what_was_recorded_outlives_a_way_down_and_up_again(database_url: str, step: str) -> None:
    url = parse_url(database_url)
    with writing(database_url) as writer:
        one_of_each_ending(writer)
        recorded_and_scored_anew(writer)
    before = rows(database_url, "SELECT * FROM events ORDER BY position")
    downgrade(url, PREVIOUS[step])
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        check(url)
    upgrade(url)
    assert rows(database_url, "SELECT * FROM events ORDER BY position") == before
    with writing(database_url) as writer:
        writer.do(admit("later"))
    assert (audit(database_url), verify_replay(database_url)) == ([], [])


def test_older_schema_knows_no_later_scorings_and_they_come_back(database_url: str) -> None:
    """What it does not know stays in the events, and its own sums are of the first scoring alone."""
    url = parse_url(database_url)
    with writing(database_url) as writer:
        recorded_and_scored_anew(writer)
    reward = "SELECT reward FROM rollout_summary WHERE rollout_id = 't-1'"
    kept = {
        name: rows(database_url, f"SELECT * FROM {name} ORDER BY position")
        for name in ("model_calls", "stops", "rewrites", "traces", "scores", "scorings")
    }
    assert all(kept.values())
    assert rows(database_url, reward) == [(0.25,)]
    downgrade(url, "0006")
    assert rows(database_url, reward) == [(0.5,)]
    upgrade(url)
    assert {name: rows(database_url, f"SELECT * FROM {name} ORDER BY position") for name in kept} == kept
    assert rows(database_url, reward) == [(0.25,)]


def test_older_schema_is_refused_where_archives_hold_the_events_of_calls(database_url: str, tmp_path: Path) -> None:
    with writing(database_url) as writer:
        recorded_and_scored_anew(writer)
    archive(database_url, before_at=2**62, to=tmp_path / "archive")
    with pytest.raises(RuntimeError, match=r"rows of \d rollouts whose events are archived"):
        downgrade(parse_url(database_url), "0006")
    check(parse_url(database_url))
    assert (audit(database_url), verify_replay(database_url)) == ([], [])


VALUES = {int: 7, str: "x", bytes: b"x", float: 0.5}
GUARDED = {"archives", "archived_rollouts"}
"""Tables that take no row but a true one."""


@pytest.mark.parametrize("step", REVISIONS[:-1])
def test_rows_as_an_older_version_writes_them_are_taken(empty_url: str, url: sa.URL, step: str) -> None:
    """While processes are replaced one by one, those of the version before go on."""

    def found(connection: sa.Connection) -> list[sa.Table]:
        then = sa.MetaData()
        then.reflect(connection, only=lambda name, _: name not in {"alembic_version", *GUARDED})
        return then.sorted_tables

    def write(connection: sa.Connection) -> None:
        for table in tables:
            row = {column.name: VALUES[column.type.python_type] for column in table.columns}
            connection.execute(table.insert().values(row))

    upgrade(url, step)
    tables = with_connection(empty_url, found)
    assert {"events", "rollouts", "members"} <= {table.name for table in tables}
    upgrade(url)
    with_connection(empty_url, write)
    for table in tables:
        assert rows(empty_url, f"SELECT count(*) FROM {table.name}") != [(0,)]


class Interrupted(Exception):
    """What the test throws into a migration."""


@contextmanager
def at_statement(start: str, act: Callable[[], None]) -> Iterator[None]:
    """Run ``act`` when any engine is about to execute a statement that starts so."""

    def before(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.lstrip().startswith(start):
            act()

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


def fail() -> None:
    raise Interrupted


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE rollouts", "CREATE INDEX", "CREATE TRIGGER", "ALTER TABLE", "INSERT INTO alembic"]
)
def test_failed_upgrade_leaves_nothing_and_can_be_repeated(empty_url: str, url: sa.URL, statement: str) -> None:
    with at_statement(statement, fail), pytest.raises(Interrupted):
        upgrade(url)
    assert objects(empty_url) == {}
    assert revision(url) is None
    upgrade(url)
    check(url)


def test_failed_downgrade_leaves_everything(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.do(admit("r-1"))
    before = objects(database_url)
    with at_statement("DROP TABLE events", fail), pytest.raises(Interrupted):
        downgrade(parse_url(database_url), "base")
    assert objects(database_url) == before
    check(parse_url(database_url))
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


def test_upgrade_killed_in_the_middle_leaves_nothing_and_can_be_repeated(empty_url: str, url: sa.URL) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, empty_url], env=os.environ, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert objects(empty_url) == {}
    upgrade(url)
    check(url)


def test_upgrades_at_once_make_one_schema(empty_url: str, url: sa.URL) -> None:
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
    assert rows(empty_url, "SELECT count(*) FROM ledger_head") == [(1,)]
    check(url)


def test_repeated_upgrade_changes_nothing(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.do(admit("r-1"))
    before = objects(database_url)
    upgrade(parse_url(database_url))
    assert objects(database_url) == before
    assert rows(database_url, "SELECT count(*) FROM events") == [(1,)]


async def test_missing_ledger_is_refused_or_made_as_the_database_declares(empty_url: str, url: sa.URL) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        await Ledger.open(empty_url, migrate=False)
    if database_of(url).capabilities.migrates_at_start:
        made = await Ledger.open(empty_url)
        await made.close()
    else:
        with pytest.raises(SchemaError, match="rollbook db upgrade"):
            await Ledger.open(empty_url)
        assert objects(empty_url) == {}
        upgrade(url)
    again = await Ledger.open(empty_url, migrate=False)
    await again.close()


async def test_schema_of_an_older_version_is_refused_with_the_command(database_url: str) -> None:
    downgrade(parse_url(database_url), "0001")
    with pytest.raises(SchemaError, match=r"0001.*rollbook db upgrade"):
        await Ledger.open(database_url, migrate=False)


async def test_schema_of_a_newer_version_is_refused_and_not_to_be_migrated(database_url: str) -> None:
    rows(database_url, "UPDATE alembic_version SET version_num = '9999' RETURNING 1")
    newer = r"9999.*newer Rollbook.*install that one"
    with pytest.raises(SchemaError, match=newer):
        await Ledger.open(database_url, migrate=False)
    with pytest.raises(SchemaError, match=newer):
        upgrade(parse_url(database_url))


@pytest.mark.parametrize(
    "tables",
    [
        ["CREATE TABLE orders (id integer)"],
        ["CREATE TABLE alembic_version (version_num text)", "INSERT INTO alembic_version VALUES ('abc') RETURNING 1"],
    ],
    ids=["its tables", "its migrations"],
)
def test_another_programs_database_is_refused_and_left_alone(empty_url: str, url: sa.URL, tables: list[str]) -> None:
    for statement in tables:
        rows(empty_url, statement)
    before = objects(empty_url)
    with pytest.raises(SchemaError, match="--database-url"):
        check(url)
    with pytest.raises(SchemaError, match="--database-url"):
        upgrade(url)
    assert objects(empty_url) == before
