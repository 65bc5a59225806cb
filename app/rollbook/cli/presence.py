"""What the ledger says of the scheduler that this process supervises: whether it is ready, whether it runs anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollbook.ledger.database import database_of
from rollbook.ledger.liveness import host_name
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.urls import parse_url

LOOK_SEC = 0.1

_OURS = "m.kind = 'scheduler' AND m.host = ? AND m.pid = ? AND m.stopped_at IS NULL"
_READY = f"SELECT 1 FROM members m WHERE {_OURS} AND m.capacity > 0 LIMIT 1"
_BUSY = f"""
    SELECT 1 FROM rollouts r JOIN members m ON m.member_id = r.scheduler
    WHERE r.scheduler IS NOT NULL AND {_OURS} LIMIT 1
"""


class Presence:
    """The scheduler whose process id ``pid()`` is; None while there is no such process."""

    def __init__(self, database_url: str, pid: Callable[[], int | None]) -> None:
        self._reader = Reader(database_of(parse_url(database_url)))
        self._pid = pid

    async def ready(self) -> None:
        """Return once it has registered and a runner has loaded the entrypoint."""
        while True:
            if await self._found(_READY, unknown=False):
                return
            await asyncio.sleep(LOOK_SEC)

    async def busy(self) -> bool:
        """Whether rollouts run, or may run: an unreadable ledger does not say."""
        return await self._found(_BUSY, unknown=True)

    async def _found(self, query: str, *, unknown: bool) -> bool:
        pid = self._pid()
        if pid is None:
            return False
        try:
            return bool(await self._reader.query(query, (host_name(), pid)))
        except LedgerUnavailable:
            return unknown

    async def close(self) -> None:
        """Close the connection."""
        await self._reader.close()
