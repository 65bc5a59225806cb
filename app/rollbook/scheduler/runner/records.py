"""What executions record, gathered for some milliseconds: a busy rollout costs its scheduler a message now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rollbook.scheduler.records import PackedRecord

RECORD_DELAY_SEC = 0.005
"""How long a record may wait for others. Nothing waits for it: the scheduler is told, not asked."""
FLUSH_BYTES = 1024 * 1024
"""So much is sent at once, however little time has passed."""


class Records:
    """Keeps the order within each execution; ``send`` takes an execution's key and its records."""

    def __init__(self, send: Callable[[int, tuple[PackedRecord, ...]], None]) -> None:
        self._send = send
        self._waiting: dict[int, list[PackedRecord]] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: int, records: Iterable[PackedRecord]) -> None:
        """Send soon; call it on the runner's loop."""
        waiting = self._waiting.setdefault(key, [])
        for record in records:
            waiting.append(record)
            self._bytes += len(record[1])
        if self._bytes >= FLUSH_BYTES:
            self._flush_all()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECORD_DELAY_SEC, self._flush_all)

    def flush(self, key: int) -> None:
        """Send what waits of one execution now."""
        records = self._waiting.pop(key, None)
        if records:
            self._bytes -= sum(len(data) for _, data in records)
            self._send(key, tuple(records))

    def _flush_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._waiting):
            self.flush(key)
