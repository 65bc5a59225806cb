"""LISTEN and NOTIFY on a connection of their own. Empty payload: the ledger tells what there is to see.

Notifications go out after the commit, one at a time, so that a burst of commits sends few of them. While the
connection is away, or where a pooler swallows notifications, the feed polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable

import sqlalchemy as sa

from .connecting import OUTAGES, Connection, connect, describe

log = logging.getLogger(__name__)

CHANNEL = "rollbook"
POLL_SEC = 0.05
"""How often the feed looks while nobody can tell it anything."""
ALIVE_SEC = 10.0
"""How often an idle connection is asked whether it still stands."""
FIRST_BACKOFF_SEC = 0.1
LONGEST_BACKOFF_SEC = 5.0


class PostgresHints:
    """One per process."""

    def __init__(self, url: sa.URL, *, notifies: Callable[[], bool]) -> None:
        """``notifies`` says whether notifications arrive at all on the way to this database."""
        self._url = url
        self._notifies = notifies
        self._hinted: Callable[[], None] | None = None
        self._listening = False
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pause_sec(self) -> float:
        return float("inf") if self._listening else POLL_SEC

    async def start(self, hinted: Callable[[], None]) -> None:
        self._hinted = hinted
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger-hints")

    def tell(self) -> None:
        self._told.set()

    async def changed(self) -> bool:
        return True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_SEC
        away = False  # an outage is told once
        while True:
            try:
                async with self._connected() as connection:
                    await self._begin(connection)
                    if away:
                        log.info("the connection for wake-ups is back")
                    away = False
                    backoff = FIRST_BACKOFF_SEC
                    await self._serve(connection)
            except OUTAGES as error:
                if not away:
                    log.info(
                        "the connection for wake-ups is away; the feed polls until it is back: %s", describe(error)
                    )
                away = True
            except Exception:
                log.exception("the connection for wake-ups failed; the feed polls until it is back")
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))
            backoff = min(backoff * 2, LONGEST_BACKOFF_SEC)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        connection = await connect(self._url)
        try:
            yield connection
        finally:
            self._listening = False
            connection.terminate()

    async def _begin(self, connection: Connection) -> None:
        """Listen, where that is of any use."""
        own_pid = connection.get_server_pid()

        def heard(_connection: object, pid: int, _channel: str, _payload: str) -> None:
            if pid != own_pid and self._hinted is not None:
                self._hinted()

        if self._notifies():
            await connection.add_listener(CHANNEL, heard)
            self._listening = True
        assert self._hinted is not None
        self._hinted()  # whatever was said while nobody listened

    async def _serve(self, connection: Connection) -> None:
        """Notify, and hear others, until the connection breaks."""
        broken = asyncio.Event()

        def ended(_connection: object) -> None:
            broken.set()
            self._told.set()

        connection.add_termination_listener(ended)
        if connection.is_closed():
            return  # since before anybody was to be told
        while not broken.is_set():
            try:
                async with asyncio.timeout(ALIVE_SEC):
                    await self._told.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=ALIVE_SEC)
                continue
            self._told.clear()
            if not broken.is_set():
                await connection.execute(f"NOTIFY {CHANNEL}", timeout=ALIVE_SEC)
