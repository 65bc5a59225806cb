"""Reads of an SQLite ledger: short ones at once on the loop's thread, operators' long ones through aiosqlite.

A short read by key takes some 20 µs and, in WAL mode, waits for no writer; a hop to a thread would cost several
times that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook_projections import Row

from .engines import async_reader_engine, reader_engine

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class SqliteReads:
    """The reading connections of one process."""

    def __init__(self, url: sa.URL) -> None:
        self._engine = reader_engine(url)
        self._url = url
        self._long: AsyncEngine | None = None
        self._connection: sa.PoolProxiedConnection | None = None

    def query_now(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """`query` for callers without a loop."""
        try:
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            db = cast("sqlite3.Connection", self._connection.driver_connection)
            return db.execute(text, parameters).fetchall()
        except (sqlite3.DatabaseError, sa.exc.DBAPIError) as error:
            if self._connection is not None:
                self._connection.invalidate()
                self._connection = None
            raise LedgerUnavailable(f"the ledger cannot be read now: {error}") from error

    async def query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.query_now(text, parameters)

    async def long_query(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        if self._long is None:
            self._long = async_reader_engine(self._url)
        try:
            async with self._long.connect() as connection:
                result = await connection.exec_driver_sql(text, tuple(parameters))
                return [tuple(row) for row in result.fetchall()]
        except sa.exc.DBAPIError as error:
            raise LedgerUnavailable(f"the ledger cannot be read now: {error.orig}") from error
        except sa.exc.TimeoutError as error:
            raise LedgerUnavailable("too many long reads of the ledger are under way; try again later") from error

    @asynccontextmanager
    async def at_one_moment(self) -> AsyncIterator[SqliteReads]:
        moment = SqliteReads(self._url)
        try:
            moment.query_now("BEGIN")
            yield moment
        finally:
            await moment.close()

    async def close(self) -> None:
        self.close_now()
        if self._long is not None:
            await self._long.dispose()

    def close_now(self) -> None:
        """Close the connection of short reads; all there is where no long read was made."""
        if self._connection is not None:
            # Not given back but ended, with whatever transaction it reads in.
            self._connection.invalidate()
            self._connection = None
        self._engine.dispose()
