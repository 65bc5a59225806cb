"""Slots: order, cancellation of waiters, resizing."""

import asyncio

import pytest

from rollbook.backends.limiter import Slots
from tests.unit.backends.support import until


async def waiters(slots: Slots, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(slots.wait()) for _ in range(count)]
    await until(lambda: slots.snapshot()["queued"] == count)
    return tasks


def test_slots_are_taken_up_to_the_limit() -> None:
    slots = Slots(2)
    assert [slots.take(), slots.take(), slots.take()] == [True, True, False]
    slots.give_back()
    assert slots.take()


def test_no_limit_never_refuses() -> None:
    slots = Slots(None)
    assert all(slots.take() for _ in range(1000))
    assert slots.snapshot() == {"max_concurrent": None, "queued": 0, "running": 1000}


async def test_waiters_are_served_in_order_and_before_newcomers() -> None:
    slots = Slots(1)
    slots.take()
    first, second = await waiters(slots, 2)
    slots.give_back()
    assert not slots.take()
    await first
    assert not second.done()
    slots.give_back()
    await second


async def test_cancelled_waiter_takes_no_slot() -> None:
    slots = Slots(1)
    slots.take()
    first, second = await waiters(slots, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slots.give_back()
    await second
    assert slots.snapshot() == {"max_concurrent": 1, "queued": 0, "running": 1}


async def test_slot_handed_over_in_the_moment_of_cancellation_is_passed_on() -> None:
    slots = Slots(1)
    slots.take()
    first, second = await waiters(slots, 2)
    slots.give_back()  # to the first, which has not run yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second


async def test_waiter_cancelled_before_a_slot_is_free_is_passed_over() -> None:
    slots = Slots(1)
    slots.take()
    first, second = await waiters(slots, 2)
    first.cancel()
    slots.give_back()  # before the first has noticed
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert slots.snapshot() == {"max_concurrent": 1, "queued": 0, "running": 1}


async def test_raising_the_limit_serves_waiters_and_lowering_it_takes_nothing_away() -> None:
    slots = Slots(1)
    slots.take()
    tasks = await waiters(slots, 2)
    slots.limit = None
    await asyncio.gather(*tasks)
    slots.limit = 1
    assert slots.snapshot() == {"max_concurrent": 1, "queued": 0, "running": 3}
    slots.give_back()
    assert not slots.take()
