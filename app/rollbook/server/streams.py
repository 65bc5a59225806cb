"""The server-sent event stream: pages of events as they come, for 25 seconds; then the client resumes.

A stream that waits holds no database connection. It ends itself so that none holds a shutdown up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable

from .answers import json_bytes
from .outages import Outages
from .pages import EventView, events_page

STREAM_SEC = 25.0
LOOK_SEC = 1.0
"""A stream looks for new events at least so often: wake-ups are hints, and lease renewals give none."""

PAGE_EVENTS = 500
_PREAMBLE = b"retry: 1000\n\n"


class Pulse:
    """Wakes everything that waits in this process, at each commit that changed a rollout."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._released = False

    def beat(self, _changed: object = None) -> None:
        """Wake whoever waits now."""
        self._event.set()
        if not self._released:
            self._event.clear()

    def release(self) -> None:
        """Wake whoever waits, now and later."""
        self._released = True
        self._event.set()

    async def wait(self, timeout_sec: float) -> None:
        """Until the next beat, at most ``timeout_sec`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_sec):
                await self._event.wait()


async def event_stream(
    ledger: Ledger, pulse: Pulse, *, after: int, open_to_all: Callable[[], bool], outages: Outages
) -> AsyncIterator[bytes]:
    """Frames of all events after a position, in their order, until 25 s are over or ``open_to_all`` turns false."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + STREAM_SEC
    yield _PREAMBLE
    while open_to_all():
        try:
            if await ledger.reader.last_position() > after:
                page = await events_page(ledger, after=after, limit=PAGE_EVENTS)
                if page.events:
                    after = page.next_after
                    yield b"".join([frame(event) for event in page.events])
                    if loop.time() < ends_at:
                        continue
        except LedgerUnavailable as error:
            outages.met(error)  # the stream ends; its client resumes it
            return
        left_sec = ends_at - loop.time()
        if left_sec <= 0:
            return
        await pulse.wait(min(LOOK_SEC, left_sec))


def frame(event: EventView) -> bytes:
    """One event of the stream. JSON holds line ends only between its tokens, where a space says the same."""
    data = json_bytes(event).replace(b"\r", b" ").replace(b"\n", b" ")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.type.encode(), data)
