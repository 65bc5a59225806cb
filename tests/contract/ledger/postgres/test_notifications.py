"""Processes anywhere wake each other through the database."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.ledger import feed as feed_module
from rollbook.ledger.ledger import Ledger
from tests.support.ledger import admit, cancel, poll

LONG_SEC = 60.0
"""Longer than any wait here takes; a wait that ends by it is a failure."""


async def test_commit_of_another_process_wakes_by_its_notification(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No backstop: only a notification can wake.
    monkeypatch.setattr(feed_module, "BACKSTOP_SEC", LONG_SEC)
    first = await Ledger.open(database_url)
    second = await Ledger.open(database_url)
    await first.submit(admit())
    with first.feed.watch("r-1") as watch:
        state = await first.submit(poll())
        waiting = asyncio.ensure_future(watch.change(state, LONG_SEC))
        await second.submit(cancel("r-1"))
        async with asyncio.timeout(LONG_SEC / 2):
            assert (await waiting).status == "cancelled"
    await first.close()
    await second.close()
