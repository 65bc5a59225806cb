"""Asking a ledger's database the way anybody does: the driver alone, the query's text as it stands."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import asyncpg
import msgspec

from rollbook.ledger.urls import POSTGRES, parse_url
from tests.support.ledger import ledger_path

LIMIT_SEC = 60.0


class Answer(msgspec.Struct, frozen=True):
    """A result: its columns' names and its rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def ask(database_url: str, query: str, *parameters: Any, first: Sequence[str] = ()) -> Answer:
    """What the database answers, on a connection of its own; the statements in ``first`` are made there before.

    Parameters are marked `?1` on SQLite and `$1` on PostgreSQL.
    """
    if parse_url(database_url).get_backend_name() == POSTGRES:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _ask_postgres(database_url, query, parameters, first)).result()
    with closing(sqlite3.connect(f"file:{ledger_path(database_url)}?mode=ro", uri=True)) as connection:
        for statement in first:
            connection.execute(statement)
        cursor = connection.execute(query, parameters)
        return Answer([column[0] for column in cursor.description], cursor.fetchall())


async def _ask_postgres(url: str, query: str, parameters: Sequence[Any], first: Sequence[str]) -> Answer:
    connection = await asyncpg.connect(url, timeout=LIMIT_SEC)
    try:
        for statement in first:
            await connection.execute(statement)
        prepared = await connection.prepare(query)
        rows = await prepared.fetch(*parameters, timeout=LIMIT_SEC)
        return Answer([attribute.name for attribute in prepared.get_attributes()], [tuple(row) for row in rows])
    finally:
        await connection.close()
