"""Connections that break, hang or are refused: retries inside, at worst an error after a while, and all by itself."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import connecting, reads, store
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from tests.contract.postgres.neighbours import LIMIT_SEC, neighbours
from tests.contract.postgres.proxy import Link, Proxy, pass_all
from tests.contract.postgres.wire import Message
from tests.support.ledger import admit, poll
from tests.support.postgres import execute
from tests.support.processes import until

MOST_CONNECTIONS = 6
"""Of one process: one writes, two read shortly, two read for long, and one is for wake-ups."""

OTHERS = """
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def sessions(database_url: str) -> int:
    count: int = execute(database_url, f"SELECT count(*) {OTHERS}")[0][0]
    return count


def end_all_sessions(database_url: str) -> None:
    execute(database_url, f"SELECT pg_terminate_backend(pid) {OTHERS}")


def assert_whole(database_url: str) -> None:
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


async def read_in_each_way(ledger: Ledger, rollout_id: str) -> None:
    async def at_one_moment() -> None:
        async with ledger.reader.at_one_moment() as moment:
            assert await moment.state(rollout_id) is not None

    await asyncio.gather(
        ledger.reader.state(rollout_id),
        ledger.reader.long_query("SELECT count(*) FROM events"),
        at_one_moment(),
    )


async def test_callers_do_not_notice_ended_sessions(database_url: str, ledger: Ledger) -> None:
    await ledger.submit(admit("r-0"))
    for number in range(1, 6):
        await read_in_each_way(ledger, "r-0")  # so that idle connections are there to be ended
        end_all_sessions(database_url)
        assert (await ledger.submit(admit(f"r-{number}"))).seq == 1
        await read_in_each_way(ledger, f"r-{number}")
        # Everybody has new ones by now, which are ended in the middle of some work.
        work = [asyncio.create_task(ledger.submit(poll(f"r-{number}"))) for _ in range(20)]
        looking = [asyncio.create_task(ledger.reader.state(f"r-{number}")) for _ in range(20)]
        await asyncio.to_thread(end_all_sessions, database_url)
        await asyncio.gather(*work, *looking)
    assert execute(database_url, "SELECT count(*) FROM events") == [(6 + 5 * 20,)]
    assert_whole(database_url)


async def test_process_has_a_few_connections_however_busy_it_is(database_url: str, ledger: Ledger) -> None:
    counts: list[int] = []
    await asyncio.gather(*(ledger.submit(admit(f"r-{number}")) for number in range(200)))
    for turn in range(5):
        work = asyncio.gather(
            *(ledger.submit(poll(f"r-{number}")) for number in range(200)),
            *(read_in_each_way(ledger, f"r-{turn}") for _ in range(50)),
        )
        counts.append(await asyncio.to_thread(sessions, database_url))
        await work
    counts.append(await asyncio.to_thread(sessions, database_url))
    assert 2 <= max(counts) <= MOST_CONNECTIONS


async def test_connections_that_lay_idle_for_long_are_replaced(
    database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have forgotten them, and would then swallow what is sent."""

    async def session() -> int:
        found: int = (await ledger.reader.long_query("SELECT pg_backend_pid()"))[0][0]
        return found

    kept = await session()
    assert await session() == kept
    monkeypatch.setattr(reads, "IDLE_LIMIT_SEC", 0.0)
    assert await session() != kept
    there = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"
    await until(lambda: execute(database_url, there, kept) == [(0,)], what="an end of the old session")


async def test_closed_ledger_leaves_no_connection(database_url: str) -> None:
    ledger = await Ledger.open(database_url)
    await ledger.submit(admit("r-1"))
    await read_in_each_way(ledger, "r-1")
    await ledger.close()
    await until(lambda: sessions(database_url) == 0, what="the end of all sessions")


WAYS: dict[str, Callable[[Ledger], Awaitable[Any]]] = {
    "submit": lambda ledger: ledger.submit(poll("r-1")),
    "query": lambda ledger: ledger.reader.state("r-1"),
    "long_query": lambda ledger: ledger.reader.long_query("SELECT * FROM events"),
    "at_one_moment": lambda ledger: read_in_each_way(ledger, "r-1"),
}


@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
async def test_cancelled_caller_leaks_no_connection(
    database_url: str, proxy: Proxy, proxied: Ledger, way: Callable[[Ledger], Awaitable[Any]]
) -> None:
    await proxied.submit(admit("r-1"))
    seen = 0
    caller: asyncio.Future[Any] | None = None

    async def cancel_at(place: int) -> bool:
        """Whether the caller was cancelled at that message, before it was done."""
        nonlocal seen, caller
        seen = 0

        async def judge(_link: Link, message: Message) -> bool:
            nonlocal seen
            seen += 1
            if seen == place and caller is not None:
                caller.cancel()
            return True

        caller = asyncio.ensure_future(way(proxied))
        proxy.judge = judge
        try:
            await asyncio.wait([caller])
            return caller.cancelled()
        finally:
            proxy.judge = pass_all

    cancelled = sum([await cancel_at(place) for place in range(1, 40)])
    assert cancelled > 3
    await proxied.submit(poll("r-1"))
    await read_in_each_way(proxied, "r-1")
    await until(lambda: sessions(database_url) <= MOST_CONNECTIONS, what="an end of the surplus sessions")
    assert_whole(database_url)


class TestServerThatDoesNotAnswer:
    """It takes whatever is sent, connections too, and says nothing."""

    @pytest.fixture(autouse=True)
    def short_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in (
            (connecting, "CONNECT_LIMIT_SEC"),
            (store, "WRITE_LIMIT_SEC"),
            (store, "RETRY_SEC"),
            (reads, "SHORT_READ_LIMIT_SEC"),
            (reads, "RETRY_SEC"),
            (reads, "TURN_LIMIT_SEC"),
        ):
            monkeypatch.setattr(module, name, 0.4)

    async def test_calls_end_with_an_error_and_work_again_once_it_answers(
        self, database_url: str, proxy: Proxy, proxied: Ledger
    ) -> None:
        await proxied.submit(admit("r-1"))

        async def swallow(_link: Link, _message: Message) -> bool:
            return False

        proxy.judge = swallow
        async with asyncio.timeout(LIMIT_SEC):
            outcomes = await asyncio.gather(
                *(proxied.submit(poll("r-1")) for _ in range(10)),
                *(proxied.reader.state("r-1") for _ in range(10)),
                return_exceptions=True,
            )
        assert {type(outcome) for outcome in outcomes} == {LedgerUnavailable}
        proxy.judge = pass_all
        async with asyncio.timeout(LIMIT_SEC):
            assert (await proxied.submit(poll("r-1"))).seq == 2
            await read_in_each_way(proxied, "r-1")
        assert_whole(database_url)

    async def test_ledger_is_not_opened(self, proxy: Proxy) -> None:
        async def swallow(_link: Link, _message: Message) -> bool:
            return False

        proxy.judge = swallow
        with pytest.raises(LedgerUnavailable, match="does not answer"):
            await Ledger.open(proxy.url)


async def test_stopped_writer_is_ended_by_the_server_and_does_no_harm_when_it_goes_on(
    database_url: str, ledger: Ledger
) -> None:
    await ledger.submit(admit("r-0"))
    async with neighbours(database_url, count=1, rollouts=1) as (writer,):

        def stopped_in_a_transaction() -> bool:
            os.kill(writer.pid, signal.SIGSTOP)
            if execute(database_url, f"SELECT count(*) {OTHERS} AND state = 'idle in transaction'") == [(1,)]:
                return True
            os.kill(writer.pid, signal.SIGCONT)
            return False

        await until(stopped_in_a_transaction, what="a writer stopped within a transaction")
        async with asyncio.timeout(LIMIT_SEC):
            await ledger.submit(poll("r-0"))
        os.kill(writer.pid, signal.SIGCONT)
        await writer.more()
        renewed = await writer.end()
        assert writer.failures == []
    assert execute(database_url, "SELECT count(*) FROM events") == [(1 + 1 + renewed,)]
    assert_whole(database_url)


async def test_writer_that_stopped_while_it_was_sent_rows_is_ended_by_those_who_wait(
    database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BEGIN", store.BEGIN.replace("lock_timeout = '10s'", "lock_timeout = '200ms'"))
    monkeypatch.setattr(store, "STALLED_WRITER_SEC", 0)
    monkeypatch.setattr(store, "RETRY_SEC", 0.1)
    await ledger.submit(admit("r-0"))
    stopped = await asyncpg.connect(database_url)
    try:
        await stopped.execute(f"BEGIN; SELECT pg_advisory_xact_lock({store.WRITE_LOCK})")
        stopped._transport.pause_reading()
        unread = asyncio.create_task(stopped.execute("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
        waiting = f"SELECT count(*) {OTHERS} AND wait_event = 'ClientWrite'"
        await until(lambda: execute(database_url, waiting) == [(1,)], what="a server that waits for a reader")
        async with asyncio.timeout(LIMIT_SEC):
            assert (await ledger.submit(poll("r-0"))).seq == 2
    finally:
        stopped.terminate()
        await asyncio.gather(unread, return_exceptions=True)


async def test_moment_whose_session_is_ended_is_an_error_of_the_ledger(database_url: str, ledger: Ledger) -> None:
    await ledger.submit(admit("r-1"))

    async def read_on() -> None:
        async with ledger.reader.at_one_moment() as moment:
            assert await moment.state("r-1") is not None
            end_all_sessions(database_url)
            await moment.state("r-1")

    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        await read_on()
    # Whatever was read stands when only the end of the transaction failed.
    async with ledger.reader.at_one_moment() as moment:
        assert await moment.state("r-1") is not None
        end_all_sessions(database_url)
    await read_in_each_way(ledger, "r-1")


WAYS_TO_READ = [way for way in WAYS if way != "submit"]


@pytest.mark.parametrize("way", WAYS_TO_READ)
async def test_read_that_finds_its_connection_broken_is_tried_again_however_late_it_is(
    proxy: Proxy, proxied: Ledger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As in a process that was stopped for longer than reads are tried."""
    await proxied.submit(admit("r-1"))
    await read_in_each_way(proxied, "r-1")
    monkeypatch.setattr(reads, "RETRY_SEC", 0.0)
    broken = False

    async def break_first(_link: Link, message: Message) -> bool:
        nonlocal broken
        if not broken and message.from_client:
            broken = True
            proxy.cut_all()
            return False
        return True

    proxy.judge = break_first
    if way == "at_one_moment":
        async with proxied.reader.at_one_moment() as moment:
            assert await moment.state("r-1") is not None
    else:
        await WAYS[way](proxied)
    assert broken


WAITING_WRITERS = """
    SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()
"""


async def test_what_is_submitted_while_others_write_goes_into_the_batch_that_waits(
    database_url: str, ledger: Ledger
) -> None:
    await ledger.submit(admit("r-0"))
    batches = ledger.meters.batch_commands.count
    holder = await asyncpg.connect(database_url)
    try:
        await holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({store.WRITE_LOCK})")
        submits = [asyncio.create_task(ledger.submit(admit("r-1")))]
        await until(lambda: execute(database_url, WAITING_WRITERS) == [(1,)], what="a writer that waits for the lock")
        submits += [asyncio.create_task(ledger.submit(admit(f"r-{number}"))) for number in range(2, 6)]
        await asyncio.sleep(0)  # a turn of the loop, in which they submit
    finally:
        await holder.close()
    await asyncio.gather(*submits)
    assert ledger.meters.batch_commands.count == batches + 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_isolation_that_the_database_prefers_makes_no_writer_fail(database_url: str, isolation: str) -> None:
    name = make_url(database_url).database
    execute(database_url, f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    ledgers = [await Ledger.open(database_url) for _ in range(2)]
    try:
        await ledgers[0].submit(admit("r-1"))
        await ledgers[1].submit(poll("r-1"))  # so that both have their connection
        holder = await asyncpg.connect(database_url)
        await holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({store.WRITE_LOCK})")
        polls = [asyncio.create_task(each.submit(poll("r-1"))) for each in ledgers]
        await until(lambda: execute(database_url, WAITING_WRITERS) == [(2,)], what="two that wait for the lock")
        await holder.close()
        assert sorted([(await each).seq for each in polls]) == [3, 4]
        assert [each.retries for each in ledgers] == [0, 0]
    finally:
        for each in ledgers:
            await each.close()
    assert_whole(database_url)
