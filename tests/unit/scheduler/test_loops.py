"""A background loop fails alone, says so, goes on with back-off, and ends only between two calls."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.scheduler.loops import Loop

LONG_SEC = 3600.0


async def within(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


async def test_the_first_call_comes_at_once_and_waking_brings_another() -> None:
    calls: list[int] = []
    called = asyncio.Event()

    async def once() -> None:
        calls.append(1)
        called.set()

    loop = Loop("test", once, interval_sec=LONG_SEC)
    loop.start()
    await within(called)
    called.clear()
    loop.wake()
    await within(called)
    await loop.stop()
    assert len(calls) == 2


async def test_a_failing_call_is_shown_and_repeated_until_it_works() -> None:
    outcomes = iter([RuntimeError("disk on fire"), None])
    failed, worked = asyncio.Event(), asyncio.Event()

    async def once() -> None:
        error = next(outcomes, None)
        if error is not None:
            failed.set()
            raise error
        worked.set()

    loop = Loop("test", once, interval_sec=LONG_SEC)
    loop.start()
    await within(failed)
    await asyncio.sleep(0)
    troubles = [loop.trouble]
    await within(worked)
    await asyncio.sleep(0)
    troubles.append(loop.trouble)
    await loop.stop()
    assert troubles == ["RuntimeError: disk on fire", None]


async def test_stopping_waits_for_the_call_under_way() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    finished: list[bool] = []

    async def once() -> None:
        entered.set()
        await release.wait()
        finished.append(True)

    loop = Loop("test", once, interval_sec=LONG_SEC)
    loop.start()
    await within(entered)
    stopping = asyncio.ensure_future(loop.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    release.set()
    async with asyncio.timeout(10):
        await stopping
    assert finished == [True]


async def test_stopping_cuts_a_back_off_short() -> None:
    failed = asyncio.Event()

    async def once() -> None:
        failed.set()
        raise RuntimeError("again")

    loop = Loop("test", once, interval_sec=LONG_SEC)
    loop.start()
    await within(failed)
    async with asyncio.timeout(10):
        await loop.stop()


async def test_back_off_grows_no_longer_than_it_may() -> None:
    worked = asyncio.Event()
    failures = iter(range(20))

    async def once() -> None:
        if next(failures, None) is not None:
            raise RuntimeError("away")
        worked.set()

    # Doubled without a limit of its own, it would be a minute and more until then.
    loop = Loop("test", once, interval_sec=LONG_SEC, longest_backoff_sec=0.001)
    loop.start()
    await within(worked)
    await loop.stop()


@pytest.mark.parametrize(
    ("error", "level", "traceback"),
    [(LedgerUnavailable("refused"), "WARNING", False), (RuntimeError("disk on fire"), "ERROR", True)],
)
async def test_only_what_nobody_foresaw_has_a_traceback(
    error: Exception, level: str, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    worked = asyncio.Event()
    outcomes = iter([error, error])

    async def once() -> None:
        if (failure := next(outcomes, None)) is not None:
            raise failure
        worked.set()

    loop = Loop("test", once, interval_sec=LONG_SEC)
    loop.start()
    await within(worked)
    await loop.stop()
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (told.getMessage(), told.levelname) == (f"test: failed, to be tried again with back-off: {error}", level)
    assert bool(told.exc_info) == traceback
