"""Statements to PostgreSQL from tests that are not coroutines, and from those that are."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg

LIMIT_SEC = 60.0
END_LIMIT_SEC = 10.0
_LOOK_PAUSE_SEC = 0.001
_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = $1 AND usename = current_user AND backend_type = 'client backend'
"""


def execute(url: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, on a connection of its own; parameters are written $1, $2, ….

    It runs in a thread with a loop of its own, so a test with a running loop may call it too, and waits meanwhile.
    """
    return _run(_execute(url, sql, parameters))


def drop_database(url: str, name: str) -> None:
    """Drop a database, whoever is still connected to it; the URL is that of another one of the same server."""
    _run(_drop_database(url, name))


async def _execute(url: str, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url, timeout=LIMIT_SEC)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters, timeout=LIMIT_SEC)]
    finally:
        await connection.close()


async def _drop_database(url: str, name: str) -> None:
    connection = await asyncpg.connect(url, timeout=LIMIT_SEC)
    try:
        # WITH (FORCE) ends sessions too, but looks only every 100 ms whether they are gone.
        async with asyncio.timeout(END_LIMIT_SEC):
            while True:
                if not await connection.fetchval(_END_SESSIONS, name):
                    break
                await asyncio.sleep(_LOOK_PAUSE_SEC)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)', timeout=LIMIT_SEC)
    finally:
        await connection.close()


def _run[T](work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1, thread_name_prefix="postgres") as thread:
        return thread.submit(asyncio.run, work).result()
