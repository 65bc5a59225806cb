"""The PostgreSQL that tests bring: shared by a run's workers and gone after it, and servers of one test alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.support import postgres
from tests.support.postgres_server import StopMode
from tests.support.processes import LIMIT_SEC, until

ROOT = Path(__file__).parents[2]
WORKER = """
import sys
from tests.support.postgres import execute, fresh_database, shared_server
with fresh_database() as url:
    print(shared_server().url(), url, flush=True)
    sys.stdin.read()
"""


class Worker:
    """A process that uses the shared server as a run's worker does, until it is told to end."""

    def __init__(self, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def urls(self) -> tuple[str, str]:
        """Those of the server and of a database that it has there."""
        assert self._process.stdout is not None
        server, database = self._process.stdout.readline().split()
        return server, database

    def end(self) -> None:
        self._process.communicate(timeout=LIMIT_SEC)

    def kill(self) -> None:
        self._process.kill()
        self.end()


@pytest.fixture
def run() -> dict[str, str]:
    """What the workers of one run have in common."""
    return {"PYTEST_XDIST_TESTRUNUID": uuid4().hex}


def folder_of(url: str) -> Path:
    folder = make_url(url).query["host"]
    assert isinstance(folder, str)
    return Path(folder)


def server_runs(folder: Path) -> bool:
    commands = (entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return any(os.fsencode(folder) in command for command in map(command_line, commands))


def command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


async def test_workers_share_a_server_until_the_last_one_ends(run: dict[str, str]) -> None:
    first, second = Worker(**run), Worker(**run)
    server, database = first.urls()
    assert second.urls()[0] == server
    first.end()
    assert (
        postgres.execute(server, "SELECT datname FROM pg_database WHERE datname = $1", make_url(database).database)
        == []
    )
    second.end()
    folder = folder_of(server)
    await until(lambda: not server_runs(folder) and not folder.exists(), what="the end of the server")


async def test_server_ends_with_workers_that_are_killed(run: dict[str, str]) -> None:
    workers = [Worker(**run), Worker(**run)]
    servers = [worker.urls()[0] for worker in workers]
    folder = folder_of(servers[0])
    assert server_runs(folder)
    for worker in workers:
        worker.kill()
    await until(lambda: not server_runs(folder) and not folder.exists(), what="the end of the server")


async def test_server_starts_anew_for_a_worker_that_comes_after_the_end(run: dict[str, str]) -> None:
    for _ in range(2):
        worker = Worker(**run)
        assert server_runs(folder_of(worker.urls()[0]))
        worker.kill()


def test_named_server_is_used_in_place_of_our_own(run: dict[str, str]) -> None:
    ours = postgres.shared_server().url(tcp=True)
    worker = Worker(**run, ROLLBOOK_TEST_POSTGRES_URL=ours)
    server, database = worker.urls()
    assert (make_url(server).port, make_url(database).port) == (make_url(ours).port,) * 2
    assert postgres.execute(database, "SHOW server_encoding") == [("UTF8",)]
    worker.end()


@pytest.fixture(scope="module")
def private() -> Iterator[postgres.PrivateServer]:
    with postgres.private_server() as server:
        postgres.execute(server.url(), "CREATE TABLE kept (id text PRIMARY KEY)")
        yield server


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate", "kill"])
def test_private_server_comes_back_with_what_was_committed(private: postgres.PrivateServer, mode: StopMode) -> None:
    postgres.execute(private.url(), "INSERT INTO kept VALUES ($1)", mode)
    before = private.pid
    private.stop(mode)
    with pytest.raises(ConnectionRefusedError):
        postgres.execute(private.url(tcp=True), "SELECT 1")
    private.start()
    assert private.pid != before
    assert (mode,) in postgres.execute(private.url(tcp=True), "SELECT id FROM kept")


def test_private_server_syncs_what_it_commits(private: postgres.PrivateServer) -> None:
    assert postgres.execute(private.url(), "SHOW fsync") == [("on",)]


def test_tests_are_no_superuser(private: postgres.PrivateServer) -> None:
    statement = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
    assert postgres.execute(private.url(), statement) == [(False,)]
    assert postgres.execute(private.superuser_url(), statement) == [(True,)]


def test_server_that_cannot_start_shows_why() -> None:
    with (
        pytest.raises(RuntimeError, match=r"ROLLBOOK_TEST_POSTGRES_URL(.|\n)*max_connections"),
        postgres.private_server(max_connections="none"),
    ):
        pass


async def test_copies_of_a_template_have_its_rows_and_are_dropped_with_their_sessions() -> None:
    with postgres.fresh_database() as template:
        postgres.execute(template, "CREATE TABLE words AS SELECT unnest(ARRAY['b', 'B', 'ä', 'a']) AS word")
        with postgres.fresh_database(template) as copy:
            assert postgres.execute(copy, "SELECT word FROM words ORDER BY word") == [("B",), ("a",), ("b",), ("ä",)]
            left_open = await asyncpg.connect(copy)
        assert make_url(copy).database not in {
            row[0] for row in postgres.execute(template, "SELECT datname FROM pg_database")
        }
        await until(left_open.is_closed, what="the end of the session")
