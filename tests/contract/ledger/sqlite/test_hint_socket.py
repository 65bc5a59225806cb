"""Processes of one host wake each other through a socket; hints may be lost, and the file tells all the same."""

import asyncio
import socket

import pytest

from rollbook.ledger import feed as feed_module
from rollbook.ledger.feed import Watch
from rollbook.ledger.ledger import Ledger
from rollbook_projections import RolloutState
from tests.support.ledger import admit, cancel, poll

LONG_SEC = 60.0
"""Longer than any wait here takes; a wait that ends by it is a failure."""


async def changed(state: RolloutState, watch: Watch) -> RolloutState:
    async with asyncio.timeout(LONG_SEC / 2):
        return await watch.change(state, LONG_SEC)


async def test_hint_of_another_process_wakes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # No backstop: only a hint can wake.
    monkeypatch.setattr(feed_module, "BACKSTOP_SEC", LONG_SEC)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    first = await Ledger.open(database_url, hint_socket=here)
    second = await Ledger.open(database_url, hint_socket=there)
    await first.submit(admit())
    with first.feed.watch("r-1") as watch:
        state = await first.submit(poll())
        waiting = asyncio.ensure_future(changed(state, watch))
        await second.submit(cancel("r-1"))
        assert (await waiting).status == "cancelled"
    await first.close()
    await second.close()
    here.close()
    there.close()


async def test_lost_hints_are_made_good_by_the_backstop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BACKSTOP_SEC", 0.05)
    silent, nowhere = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    first = await Ledger.open(database_url, hint_socket=silent)
    second = await Ledger.open(database_url)
    await first.submit(admit())
    with first.feed.watch("r-1") as watch:
        state = await first.submit(poll())
        waiting = asyncio.ensure_future(changed(state, watch))
        await second.submit(cancel("r-1"))
        assert (await waiting).status == "cancelled"
    await first.close()
    await second.close()
    silent.close()
    nowhere.close()


async def test_full_or_closed_hint_socket_stops_no_commit(database_url: str) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger = await Ledger.open(database_url, hint_socket=here)
    for i in range(400):
        await ledger.submit(admit(f"r-{i}"))
    there.close()
    assert (await ledger.submit(admit("last"))).rollout_id == "last"
    await ledger.close()
    here.close()
