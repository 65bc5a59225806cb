"""A ledger's database as anybody sees it who knows nothing of Rollbook: plain statements, parameters marked `?`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol

import asyncpg

from rollbook.ledger.postgres.blocking import LoopThread, loop_thread
from rollbook.ledger.postgres.dialect import numbered
from rollbook.ledger.sqlite.engines import database_path
from rollbook.ledger.urls import POSTGRES, SQLITE, parse_url

type Rows = list[tuple[Any, ...]]


class Shell(Protocol):
    """One connection; every statement stands for itself unless a transaction was begun."""

    def rows(self, text: str, parameters: Iterable[Any] = ()) -> Rows:
        """What a statement returns.

        Raises:
            sqlite3.Error, asyncpg.PostgresError: the database refuses it.
        """

    def records(self, text: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        """The same, with the columns' names."""


class _SqliteShell:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, text: str, parameters: Iterable[Any] = ()) -> Rows:
        return self._connection.execute(text, tuple(parameters)).fetchall()

    def records(self, text: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        cursor = self._connection.execute(text, tuple(parameters))
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]


class _PostgresShell:
    def __init__(self, thread: LoopThread, connection: Any) -> None:
        self._thread = thread
        self._connection = connection

    def rows(self, text: str, parameters: Iterable[Any] = ()) -> Rows:
        return [tuple(row) for row in self._fetch(text, parameters)]

    def records(self, text: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        return [dict(row) for row in self._fetch(text, parameters)]

    def _fetch(self, text: str, parameters: Iterable[Any]) -> list[Any]:
        found: list[Any] = self._thread.run(self._connection.fetch(numbered(text), *parameters))
        return found


@contextmanager
def shell(database_url: str) -> Iterator[Shell]:
    """A connection of either database."""
    url = parse_url(database_url)
    if url.get_backend_name() != POSTGRES:
        with plain(database_url) as connection:
            yield _SqliteShell(connection)
        return
    with loop_thread() as thread:
        opened = thread.run(asyncpg.connect(database_url))
        try:
            yield _PostgresShell(thread, opened)
        finally:
            thread.run(opened.close())


def rows(database_url: str, text: str, parameters: Iterable[Any] = ()) -> Rows:
    """What one statement returns, on a connection of its own."""
    with shell(database_url) as opened:
        return opened.rows(text, parameters)


@contextmanager
def plain(database_url: str) -> Iterator[sqlite3.Connection]:
    """A file as anybody's `sqlite3` sees it, each statement for itself."""
    url = parse_url(database_url)
    assert url.get_backend_name() == SQLITE
    with closing(sqlite3.connect(database_path(url), isolation_level=None)) as connection:
        yield connection
