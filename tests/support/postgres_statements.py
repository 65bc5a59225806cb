"""Statements to PostgreSQL from tests that are not coroutines, and from those that are."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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

    A test with a running loop may call it too, and waits meanwhile.
    """
    return _loop().run(_execute(url, sql, parameters))


class ServerConnection:
    """A connection that stays, for what concerns the server: every test makes a database and drops it."""

    def __init__(self, url: str) -> None:
        """The URL is that of a database which is always there."""
        self._url = url
        self._connection: asyncpg.Connection | None = None

    def execute(self, sql: str) -> None:
        """Carry a statement out."""
        _loop().run(self._execute(sql))

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        _loop().run(self._drop_database(name))

    async def _opened(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=LIMIT_SEC)
            atexit.register(self._connection.terminate)  # before the end of its loop, which came first
        return self._connection

    async def _execute(self, sql: str) -> None:
        await (await self._opened()).execute(sql, timeout=LIMIT_SEC)

    async def _drop_database(self, name: str) -> None:
        connection = await self._opened()
        # WITH (FORCE) ends sessions too, but looks only every 100 ms whether they are gone.
        async with asyncio.timeout(END_LIMIT_SEC):
            while True:
                if not await connection.fetchval(_END_SESSIONS, name):
                    break
                await asyncio.sleep(_LOOK_PAUSE_SEC)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)', timeout=LIMIT_SEC)


async def _execute(url: str, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url, timeout=LIMIT_SEC)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters, timeout=LIMIT_SEC)]
    finally:
        await connection.close()


class _Loop:
    """An event loop for one statement after the other, from any thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._turn = threading.Lock()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        # A thread for each, and none that stays: the caller's may have a running loop, and tests count threads.
        with self._turn, ThreadPoolExecutor(1, thread_name_prefix="postgres") as thread:
            return thread.submit(self._runner.run, work).result()

    def close(self) -> None:
        self._runner.close()


@cache
def _loop() -> _Loop:
    loop = _Loop()
    atexit.register(loop.close)
    return loop
