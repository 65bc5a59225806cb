"""Who wakes whom: no change is missed, renewals wake nobody."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.feed import Watch
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import News
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.urls import POSTGRES, parse_url
from rollbook_projections import RolloutState
from tests.support.ledger import (
    admit,
    cancel,
    claim,
    enter,
    finish,
    ledger_path,
    poll,
    record,
    rescore,
    rows,
    scheduler,
)

MOST_READS = 4
"""Connections that a process reads with, at most."""
LONG_SEC = 60.0
"""Longer than any wait here takes; a wait that ends by it is a failure."""


@pytest.fixture
async def other(ledger: Ledger, database_url: str) -> AsyncIterator[Ledger]:
    """Another process's ledger, without a hint socket: on SQLite it looks at the file."""
    opened = await Ledger.open(database_url)
    yield opened
    await opened.close()


class Hearing:
    """What a feed tells, in its order."""

    def __init__(self, ledger: Ledger) -> None:
        self.told: list[str] = []
        self._news = asyncio.Event()
        ledger.feed.listen(self._hear)

    def _hear(self, changes: dict[int, RolloutState]) -> None:
        self.told.extend(state.rollout_id for state in changes.values())
        self._news.set()

    async def until(self, rollout_id: str) -> None:
        """Wait until the feed told this rollout, and so everything that happened before."""
        async with asyncio.timeout(LONG_SEC / 2):
            while rollout_id not in self.told:
                self._news.clear()
                await self._news.wait()


async def changed(state: RolloutState, watch: Watch) -> RolloutState:
    async with asyncio.timeout(LONG_SEC / 2):
        return await watch.change(state, LONG_SEC)


async def test_change_after_the_renewal_wakes(ledger: Ledger) -> None:
    await ledger.submit(scheduler())
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state = await ledger.submit(poll())
        waiting = asyncio.ensure_future(changed(state, watch))
        await ledger.submit(claim())
        assert not waiting.done(), "a claim alone is no change that clients see"
        await ledger.submit(enter())
        assert (await waiting).status == "running"


async def test_change_between_renewal_and_wait_is_not_missed(ledger: Ledger) -> None:
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state = await ledger.submit(poll())
        await ledger.submit(cancel("r-1"))
        assert (await changed(state, watch)).status == "cancelled"


async def test_change_in_the_batch_of_the_renewal_itself_is_not_missed(ledger: Ledger) -> None:
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state, _ = await asyncio.gather(ledger.submit(poll()), ledger.submit(cancel("r-1")))
        assert state.status == "queued"
        assert (await changed(state, watch)).status == "cancelled"


@pytest.mark.parametrize("seed", range(20))
async def test_no_order_of_poll_and_change_loses_the_change(ledger: Ledger, other: Ledger, seed: int) -> None:
    chance = random.Random(seed)
    await ledger.submit(scheduler())
    await ledger.submit(admit())
    await ledger.submit(claim())

    async def long_poll(process: Ledger) -> str:
        with process.feed.watch("r-1") as watch:
            state = await process.submit(poll())
            return (await changed(state, watch)).status if not state.terminal else state.status

    async def end(process: Ledger) -> None:
        for _ in range(chance.randint(0, 3)):
            await process.submit(poll())
        await process.submit(finish())

    calls: list[Any] = [long_poll(ledger), long_poll(other), long_poll(ledger), end(chance.choice([ledger, other]))]
    chance.shuffle(calls)
    assert [status for status in await asyncio.gather(*calls) if status] == ["success"] * 3


async def test_renewals_wake_nobody(ledger: Ledger, other: Ledger) -> None:
    hearing = Hearing(other)
    await ledger.submit(admit())
    await hearing.until("r-1")
    with ledger.feed.watch("r-1") as mine, other.feed.watch("r-1") as theirs:
        state = await ledger.submit(poll())
        waits = [asyncio.ensure_future(watch.change(state, LONG_SEC)) for watch in (mine, theirs)]
        for _ in range(5):
            await ledger.submit(poll())
        await ledger.submit(admit("marker"))
        await hearing.until("marker")
        assert hearing.told == ["r-1", "marker"]
        assert not any(wait.done() for wait in waits)
        await ledger.submit(cancel("r-1"))
        async with asyncio.timeout(LONG_SEC / 2):
            assert [state.status for state in await asyncio.gather(*waits)] == ["cancelled"] * 2


async def test_records_of_an_attempt_are_news_but_wake_no_poll(ledger: Ledger, other: Ledger) -> None:
    hearing = Hearing(other)
    await ledger.submit(scheduler())
    await ledger.submit(admit())
    await ledger.submit(claim())
    await hearing.until("r-1")
    hearing.told.clear()
    with ledger.feed.watch("r-1") as mine, other.feed.watch("r-1") as theirs:
        state = await ledger.submit(poll())
        waits = [asyncio.ensure_future(watch.change(state, LONG_SEC)) for watch in (mine, theirs)]
        await ledger.submit(record())
        await hearing.until("r-1")
        await ledger.submit(admit("marker"))
        await hearing.until("marker")
        assert not any(wait.done() for wait in waits)
        await ledger.submit(finish())
        async with asyncio.timeout(LONG_SEC / 2):
            assert [state.status for state in await asyncio.gather(*waits)] == ["success"] * 2
    hearing.told.clear()
    await ledger.submit(rescore())
    await hearing.until("r-1")


async def test_news_older_than_the_renewal_does_not_wake(ledger: Ledger) -> None:
    await ledger.submit(scheduler())
    queued = await ledger.submit(admit())
    await ledger.submit(claim())
    await ledger.submit(enter())
    watch = Watch()
    running = await ledger.submit(poll())
    waiting = asyncio.ensure_future(changed(running, watch))
    await asyncio.sleep(0)
    watch.offer(queued)  # read before the renewal, told after it
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.offer(await ledger.submit(finish()))
    assert (await waiting).status == "success"


async def test_ledger_that_was_set_back_is_followed_and_those_who_wait_are_told(ledger: Ledger, other: Ledger) -> None:
    await ledger.submit(admit())
    hearing = Hearing(other)
    await ledger.submit(admit("seen"))
    await hearing.until("seen")
    with other.feed.watch("r-1") as watch:
        waiting = asyncio.ensure_future(changed(await other.submit(poll()), watch))
        other.feed._position = 1_000  # as if a standby without the last commits had taken over
        await ledger.submit(cancel("r-1"))
        assert (await waiting).status == "cancelled"
    await ledger.submit(admit("after"))
    await hearing.until("after")


async def test_wait_ends_with_its_time_and_tells_the_latest(ledger: Ledger) -> None:
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state = await ledger.submit(poll())
        assert await watch.change(state, 0.0) == state


async def test_all_waiters_of_a_rollout_are_woken(ledger: Ledger) -> None:
    await ledger.submit(admit())

    async def wait() -> str:
        with ledger.feed.watch("r-1") as watch:
            return (await changed(await ledger.submit(poll()), watch)).status

    waits = [asyncio.ensure_future(wait()) for _ in range(5)]
    await ledger.submit(poll())
    await ledger.submit(cancel("r-1"))
    assert await asyncio.gather(*waits) == ["cancelled"] * 5


async def test_release_ends_present_and_later_waits(ledger: Ledger) -> None:
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state = await ledger.submit(poll())
        waiting = asyncio.ensure_future(changed(state, watch))
        await asyncio.sleep(0)
        ledger.feed.release_waiters()
        assert await waiting == state
        assert await changed(state, watch) == state


async def test_cancelled_waiter_leaves_nothing_behind(ledger: Ledger) -> None:
    await ledger.submit(admit())

    async def wait() -> None:
        with ledger.feed.watch("r-1") as watch:
            await watch.change(await ledger.submit(poll()), LONG_SEC)

    waiting = asyncio.ensure_future(wait())
    await ledger.submit(poll())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ledger.feed._watches == {}
    await ledger.submit(cancel("r-1"))


async def test_commit_of_another_process_wakes(ledger: Ledger, other: Ledger) -> None:
    await ledger.submit(admit())
    with ledger.feed.watch("r-1") as watch:
        state = await ledger.submit(poll())
        waiting = asyncio.ensure_future(changed(state, watch))
        await other.submit(cancel("r-1"))
        assert (await waiting).status == "cancelled"


async def test_changes_of_batches_that_were_carried_out_one_by_one_are_told(ledger: Ledger, other: Ledger) -> None:
    for i in range(10):
        await ledger.submit(admit(f"r-{i}"))
    with other.feed.watch("r-0") as watch:
        state = await other.submit(poll("r-0"))
        waiting = asyncio.ensure_future(changed(state, watch))
        # A command that the database refuses splits its batch, and the other process writes between the parts.
        await asyncio.gather(
            *(other.submit(admit(f"s-{i}")) for i in range(20)),
            other.submit(admit("\ud800")),
            *(ledger.submit(cancel(f"r-{i}")) for i in range(10)),
            return_exceptions=True,
        )
        assert (await waiting).status == "cancelled"


@pytest.mark.parametrize("error", [LedgerUnavailable("the test's"), ValueError("the test's")])
async def test_read_that_fails_is_repeated(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    hearing = Hearing(other)
    await ledger.submit(admit())
    await hearing.until("r-1")
    fail = iter([True])
    news_after = other.reader.news_after
    troubles: list[str | None] = []

    async def failing(position: int, limit: int) -> list[News]:
        if next(fail, False):
            raise error
        troubles.append(other.feed.trouble)
        return await news_after(position, limit)

    monkeypatch.setattr(other.reader, "news_after", failing)
    with other.feed.watch("r-1") as watch:
        state = await other.reader.state("r-1")
        assert state is not None
        waiting = asyncio.ensure_future(changed(state, watch))
        await ledger.submit(cancel("r-1"))
        assert (await waiting).status == "cancelled"
        assert troubles[0] == "the test's"
        async with asyncio.timeout(LONG_SEC / 2):
            while other.feed.trouble is not None:
                await other.reader.state("r-1")  # the turn that told the change reads once more before it is over


async def test_listener_that_fails_keeps_nobody_from_hearing(ledger: Ledger) -> None:
    def fail(changes: dict[int, RolloutState]) -> None:
        raise ValueError("a listener's own fault")

    ledger.feed.listen(fail)
    hearing = Hearing(ledger)
    await ledger.submit(admit())
    await hearing.until("r-1")


async def test_listeners_hear_every_change_once_in_order(ledger: Ledger, other: Ledger, database_url: str) -> None:
    hearing = Hearing(ledger)
    names = [f"r-{i}" for i in range(200)]
    await asyncio.gather(*((ledger, other)[i % 2].submit(admit(name)) for i, name in enumerate(names)))
    await other.submit(admit("last"))
    await hearing.until("last")
    assert hearing.told == [name for (name,) in rows(database_url, "SELECT rollout_id FROM rollouts ORDER BY number")]


async def test_thousand_waiting_polls_hold_no_connection(ledger: Ledger, database_url: str) -> None:
    names = [f"r-{i}" for i in range(1_000)]
    await asyncio.gather(*(ledger.submit(admit(name)) for name in names))
    before = open_connections(database_url)
    parked: list[str] = []
    all_parked = asyncio.Event()

    async def park(name: str) -> str:
        with ledger.feed.watch(name) as watch:
            state = await ledger.submit(poll(name))
            parked.append(name)
            if len(parked) == len(names):
                all_parked.set()
            return (await changed(state, watch)).status

    polls = [asyncio.ensure_future(park(name)) for name in names]
    async with asyncio.timeout(LONG_SEC / 2):
        await all_parked.wait()
    # Reads open theirs when they are first needed; what polls hold would be a thousand.
    assert open_connections(database_url) <= before + MOST_READS
    await another_can_write(database_url)
    await ledger.submit(cancel(*names))
    assert await asyncio.gather(*polls) == ["cancelled"] * 1_000


def open_connections(database_url: str) -> int:
    """How many of them this process has to the database, or open files of it."""
    if parse_url(database_url).get_backend_name() == POSTGRES:
        text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return int(rows(database_url, text)[0][0])
    entries = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(str(entry.readlink()).startswith(str(ledger_path(database_url))) for entry in entries)


async def another_can_write(database_url: str) -> None:
    """Another process's turn comes at once: nobody keeps the lock while polls wait."""
    another = await Ledger.open(database_url)
    async with asyncio.timeout(LONG_SEC / 2):
        await another.submit(admit("of-another"))
    await another.close()


async def test_more_than_a_page_of_news_is_told_whole(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.ledger.feed.READ_LIMIT", 3)
    hearing = Hearing(other)
    names = [f"r-{i}" for i in range(10)]
    # The renewals are the rollouts' newest events, and pages away from what is to be told.
    await asyncio.gather(*(ledger.submit(command(name)) for command in (admit, poll) for name in names))
    for name in names:
        await hearing.until(name)
