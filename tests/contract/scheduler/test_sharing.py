"""Several schedulers at one queue, each with its own connection: they share a burst, and none waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.wire import Finished
from tests.support.scheduling import LEASE_US, QUEUE, PlayedPool, admit, settings, settled


@asynccontextmanager
async def scheduling(database_url: str, slots: int) -> AsyncIterator[PlayedPool]:
    """A scheduler as a process of its own has it; the pool that it fills."""
    ledger = await Ledger.open(database_url)
    pool = PlayedPool(slots=slots)
    scheduler = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await scheduler.start()
    try:
        yield pool
    finally:
        await scheduler.stop()
        await ledger.close()


async def admit_at_once(ledger: Ledger, count: int) -> None:
    await asyncio.gather(*(admit(ledger, f"r-{i}") for i in range(count)))


async def test_idle_schedulers_share_a_burst_that_one_could_take(database_url: str) -> None:
    api = await Ledger.open(database_url)
    api.guard_leases(LEASE_US)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        pools = [await stack.enter_async_context(scheduling(database_url, 16)) for _ in range(2)]
        await admit_at_once(api, 16)
        first, second = pools
        await first.until(lambda: bool(first.running))
        await second.until(lambda: bool(second.running))


async def test_all_of_a_burst_is_taken_though_a_neighbour_with_free_slots_stalls(database_url: str) -> None:
    api = await Ledger.open(database_url)
    api.guard_leases(LEASE_US)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        await api.submit(
            cmd.Register(
                member_id="stalled",
                kind="scheduler",
                host="elsewhere",
                pid=1,
                dead_after_us=LEASE_US,
                entrypoint="x.py",
                queues=(QUEUE,),
                capacity=100,
            )
        )
        pool = await stack.enter_async_context(scheduling(database_url, 10))
        await admit_at_once(api, 10)
        await pool.until(lambda: len(pool.running) == 10)


async def test_all_work_is_done_once_by_schedulers_of_any_size(database_url: str) -> None:
    api = await Ledger.open(database_url)
    api.guard_leases(LEASE_US)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        pools = [await stack.enter_async_context(scheduling(database_url, slots)) for slots in (1, 3, 8)]

        async def work(pool: PlayedPool) -> None:
            while True:
                await pool.until(lambda: bool(pool.running))
                for key in list(pool.running):
                    pool.end(key, Finished(key, "success"))

        workers = [asyncio.create_task(work(pool)) for pool in pools]
        await admit_at_once(api, 60)
        for i in range(60):
            state = await settled(api, f"r-{i}", lambda state: not state.active)
            assert (state.status, state.attempt) == ("success", 1)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
