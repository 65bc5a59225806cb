"""Commands that go on until something happens, over a PostgreSQL that goes away and comes back meanwhile."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import asyncpg
import pytest

from rollbook.ledger.postgres.blocking import loop_thread
from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.ledger.urls import parse_url
from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import outcome, start
from tests.support.databases import SECRET_KEY
from tests.support.postgres import PrivateServer, execute, private_server

AWAY = "rollbook: the ledger cannot be read now: "
BACK = "rollbook: the ledger can be read again; "
SILENT = "the ledger does not answer; look into it with `rollbook doctor`"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with private_server(fsync="off") as started:
        yield started


@pytest.fixture
def database_url(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"ledger_{uuid4().hex}"
    execute(server.url(), f"CREATE DATABASE {name}")
    upgrade(parse_url(server.url(name)))
    monkeypatch.setenv(DATABASE_VARIABLE, server.url(name))
    monkeypatch.setenv(KEY_VARIABLE, SECRET_KEY)
    return server.url(name)


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts a command; none outlives the test."""
    with ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[str]:
            process = stack.enter_context(start(*arguments))
            stack.callback(process.kill)
            return process

        yield run


@contextmanager
def locked(database_url: str, table: str) -> Iterator[None]:
    """Reads of the table wait meanwhile."""
    with loop_thread() as thread:
        holder = thread.run(asyncpg.connect(database_url))
        thread.run(holder.execute(f"BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        try:
            yield
        finally:
            thread.run(holder.close())


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_following_waits_for_the_end_of_an_outage(server: PrivateServer, database_url: str, started: Start) -> None:
    with make.writing(database_url) as writer:
        writer.batch(make.admit("before"))
    following = started("events", "--follow", "--json", "--limit", "2")
    assert '"before"' in said(following)
    server.stop()
    away = told(following)
    assert away.startswith(AWAY)
    assert away.endswith("; following goes on when it can be\n")
    server.start()
    assert told(following) == f"{BACK}following goes on\n"
    with make.writing(database_url) as writer:
        writer.batch(make.admit("after"))
    ended = outcome(following)
    (event,) = ended.json_lines
    assert (ended.code, event["rollout_id"], ended.err) == (0, "after", "")


def test_following_that_waits_ends_when_it_is_told_to(server: PrivateServer, database_url: str, started: Start) -> None:
    with make.writing(database_url) as writer:
        writer.batch(make.admit("before"))
    following = started("events", "--follow", "--json")
    assert '"before"' in said(following)
    server.stop()
    try:
        assert told(following).startswith(AWAY)
        following.terminate()
        ended = outcome(following)
    finally:
        server.start()
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_draining_waits_for_the_end_of_an_outage(server: PrivateServer, database_url: str, started: Start) -> None:
    with make.writing(database_url) as writer:
        writer.batch(make.scheduler(), make.admit("r"))
    draining = started("drain", "--json")
    assert [json.loads(said(draining))["event"] for _ in range(2)] == ["closed", "active"]
    server.stop()
    assert told(draining).startswith(AWAY)
    server.start()
    assert told(draining) == f"{BACK}waiting goes on\n"
    with make.writing(database_url) as writer:
        writer.batch(make.cancel("r"))
    ended = outcome(draining)
    assert (ended.code, ended.json_lines[-1]["event"], ended.err) == (0, "idle", "")


def test_draining_ends_by_its_time_though_the_database_says_nothing(database_url: str, started: Start) -> None:
    with make.writing(database_url) as writer:
        writer.batch(make.scheduler(), make.admit("r"))
    draining = started("drain", "--json", "--timeout", "4")
    assert [json.loads(said(draining))["event"] for _ in range(2)] == ["closed", "active"]
    with locked(database_url, "queue_counts"):
        ended = outcome(draining)
    assert (ended.code, ended.json_lines[-1]["event"], ended.error_line) == (1, "timed_out", SILENT)
