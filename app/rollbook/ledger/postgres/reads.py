"""Reads of a PostgreSQL ledger: two small pools, so that operators' long reads keep no poll waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import Row

from .connecting import LONG_WAITED, OUTAGES, PLANNING, Connection, connect, is_outage, pauses, unavailable
from .dialect import numbered

SHORT_READS = 2
LONG_READS = 2
"""Connections of each kind, opened when they are first needed."""
SHORT_READ_LIMIT_SEC = 10.0
"""How long a short read may take: callers wait for it. Long ones have the connection's own limit."""
IDLE_LIMIT_SEC = 60.0
"""Connections that lay idle for longer are not used any more: what stands in between may have forgotten them."""
TURN_LIMIT_SEC = 15.0
RETRY_SEC = 3.0


class Pool:
    """A few connections, the last used first; one that broke is replaced when it is next needed."""

    def __init__(self, url: sa.URL, size: int, *, settings: Callable[[], Sequence[str]] = lambda: ()) -> None:
        """``settings`` are each new connection's own."""
        self._url = url
        self._settings = settings
        self._turns = asyncio.Semaphore(size)
        self._idle: list[tuple[Connection, float]] = []
        """With the time of their last use."""
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One of the connections, alone.

        Raises:
            LedgerUnavailable: all of them were in use for too long.
        """
        try:
            async with asyncio.timeout(TURN_LIMIT_SEC):
                await self._turns.acquire()
        except TimeoutError as error:
            raise LedgerUnavailable("too many reads of the ledger are under way; try again later") from error
        connection: Connection | None = None
        try:
            connection = self._kept() or await connect(self._url, settings=self._settings())
            yield connection
        except BaseException:
            # Whatever state it is in, nobody else gets it: a cancelled read may still be running on it.
            if connection is not None:
                connection.terminate()
            raise
        else:
            if self._closed or connection.is_closed():
                connection.terminate()
            else:
                self._idle.append((connection, asyncio.get_running_loop().time()))
        finally:
            self._turns.release()

    def _kept(self) -> Connection | None:
        """A connection that is there and probably works."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, used_at = self._idle.pop()
            if not connection.is_closed() and now - used_at < IDLE_LIMIT_SEC:
                return connection
            connection.terminate()
        return None

    async def close(self) -> None:
        """Close the connections; those in use end with their reads."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.terminate()


class PostgresReads:
    """The reading connections of one process."""

    def __init__(
        self,
        url: sa.URL,
        *,
        pooled: Callable[[], bool] = lambda: False,
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        """``pooled`` says whether a pooler gives every transaction another session, which then keeps the server's
        settings; ``retried`` is called whenever a read is tried again."""
        self._url = url
        self._retried = retried
        self._short = Pool(url, SHORT_READS, settings=lambda: () if pooled() else PLANNING)
        self._long = Pool(url, LONG_READS)

    async def query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return await self._read(self._short, text, parameters)

    async def long_query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return await self._read(self._long, text, parameters)

    async def _read(self, pool: Pool, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Reads change nothing: what a broken connection cut off is asked again on a new one."""
        limit_sec = SHORT_READ_LIMIT_SEC if pool is self._short else None

        async def read() -> list[Row]:
            async with pool.connection() as connection:
                rows: list[Row] = await connection.fetch(numbered(text), *parameters, timeout=limit_sec)
                return rows

        return await self._tried(read)

    @asynccontextmanager
    async def at_one_moment(self) -> AsyncIterator[MomentReads]:
        async def begin() -> tuple[AsyncExitStack, Connection]:
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(self._long.connection())
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return stack.pop_all(), connection

        begun, connection = await self._tried(begin)
        try:
            async with begun:
                yield MomentReads(connection)
                try:
                    await connection.execute("COMMIT")
                except OUTAGES:
                    connection.terminate()  # what was read is as good as ever
        except OUTAGES as error:
            raise unavailable(error, doing="read") from error

    async def _tried[Result](self, read: Callable[[], Awaitable[Result]]) -> Result:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + RETRY_SEC
        waits = pauses()
        tried = 0
        while True:
            tried += 1
            try:
                return await read()
            except Exception as error:
                if not is_outage(error):
                    raise
                # A process that was stopped for longer than that finds its connection broken: that is no outage yet.
                hasty = tried == 1 and not isinstance(error, LONG_WAITED)
                if loop.time() >= give_up_at and not hasty:
                    raise unavailable(error, doing="read") from error
            self._retried()
            await asyncio.sleep(next(waits))

    async def close(self) -> None:
        await self._short.close()
        await self._long.close()


class MomentReads:
    """Reads within one transaction that sees one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        rows: list[Row] = await self._connection.fetch(numbered(text), *parameters)
        return rows

    async def long_query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return await self.query(text, parameters)

    @asynccontextmanager
    async def at_one_moment(self) -> AsyncIterator[MomentReads]:
        yield self

    async def close(self) -> None:
        return None
