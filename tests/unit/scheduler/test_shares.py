"""When a scheduler keeps to its share of what waits, and when it takes what others left."""

import asyncio

from rollbook.scheduler.shares import Shares


async def test_claims_are_fair_until_one_was_short_for_a_while() -> None:
    asked = asyncio.Event()
    shares = Shares(asked.set)
    told = [shares.fair]
    shares.short()
    told.append(shares.fair)
    async with asyncio.timeout(10):
        await asked.wait()
    told.append(shares.fair)
    shares.settled()
    told.append(shares.fair)
    assert told == [True, True, False, True]


async def test_many_short_claims_ask_again_once() -> None:
    asked: list[bool] = []
    again = asyncio.Event()

    def ask() -> None:
        asked.append(shares.fair)
        again.set()

    shares = Shares(ask)
    for _ in range(5):
        shares.short()
    async with asyncio.timeout(10):
        await again.wait()
    assert asked == [False]
    again.clear()
    shares.short()
    async with asyncio.timeout(10):
        await again.wait()
    assert asked == [False, False]


async def test_nothing_is_asked_once_all_is_settled() -> None:
    asked: list[str] = []
    forgotten = Shares(lambda: asked.append("forgotten"))
    forgotten.short()
    forgotten.settled()
    later = asyncio.Event()
    waiting = Shares(later.set)
    waiting.short()
    async with asyncio.timeout(10):
        await later.wait()
    assert asked == []
    assert forgotten.fair
