"""A transaction-mode pooler in between: everything works by polling, or start-up says what must change."""

import asyncio

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import pooling
from rollbook.ledger.postgres.connecting import connect, is_outage, unavailable
from rollbook.ledger.postgres.pooling import Pooling, find_pooling
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from tests.contract.postgres.neighbours import LIMIT_SEC, neighbours
from tests.contract.postgres.pooler import Lending, Pooler, pooler_before
from tests.support.ledger import admit, cancel, claim, finish, poll, scheduler
from tests.support.postgres import execute, fresh_database, shared_server


@pytest.fixture
def tcp_url(database_url: str) -> str:
    return shared_server().url(make_url(database_url).database, tcp=True)


async def found(pooler: Pooler) -> Pooling:
    first = await connect(parse_url(pooler.url))
    try:
        return await find_pooling(first, parse_url(pooler.url))
    finally:
        first.terminate()


@pytest.mark.parametrize("lending", ["newest", "oldest"])
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_pooler_that_keeps_statements_is_recognised(
    tcp_url: str, monkeypatch: pytest.MonkeyPatch, size: int, lending: Lending
) -> None:
    monkeypatch.setattr(pooling, "TURN_LIMIT_SEC", 0.2)
    async with pooler_before(tcp_url, size=size, lending=lending) as pooler:
        assert await found(pooler) is Pooling.TRANSACTION


@pytest.mark.parametrize("lending", ["newest", "oldest"])
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_pooler_that_forgets_statements_is_refused_with_what_to_change(
    tcp_url: str, monkeypatch: pytest.MonkeyPatch, size: int, lending: Lending
) -> None:
    monkeypatch.setattr(pooling, "TURN_LIMIT_SEC", 0.2)
    async with pooler_before(tcp_url, size=size, keeps_statements=False, lending=lending) as pooler:
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=r"set max_prepared_statements in PgBouncer \(1\.21 or later\)"):
                await Ledger.open(pooler.url)


async def test_direct_connection_that_is_slow_is_not_taken_for_a_pooler(
    tcp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "TURN_LIMIT_SEC", 0.0)
    first = await connect(parse_url(tcp_url))
    try:
        assert await find_pooling(first, parse_url(tcp_url)) is Pooling.NONE
    finally:
        first.terminate()


async def test_pooler_with_a_session_for_each_client_is_as_good_as_none(tcp_url: str) -> None:
    async with pooler_before(tcp_url, keeps_statements=False, lending="own") as pooler:
        assert await found(pooler) is Pooling.NONE


async def test_forgotten_statement_is_told_as_such(tcp_url: str) -> None:
    """Poolers are put in place while processes run, too."""
    async with pooler_before(tcp_url, size=2, keeps_statements=False) as pooler:
        first, second = await connect(parse_url(pooler.url)), await connect(parse_url(pooler.url))
        try:
            await first.fetchval("SELECT 1")
            async with second.transaction():
                with pytest.raises(asyncpg.InvalidSQLStatementNameError) as caught:
                    await first.fetchval("SELECT 1")
        finally:
            first.terminate()
            second.terminate()
    assert is_outage(caught.value)
    assert "max_prepared_statements" in str(unavailable(caught.value, doing="read"))


class TestThroughPooler:
    async def test_processes_of_a_ledger_work_together(self, database_url: str, tcp_url: str) -> None:
        async with pooler_before(tcp_url, size=3) as pooler:
            one, other = await Ledger.open(pooler.url), await Ledger.open(pooler.url)
            try:
                await asyncio.gather(*(one.submit(admit(f"r-{number}")) for number in range(5)))
                with other.feed.watch("r-0") as watch:
                    state = await other.submit(poll("r-0"))
                    async with neighbours(pooler.url, count=2, rollouts=5) as writers:
                        await asyncio.gather(*(each.more() for each in writers))
                        await one.submit(cancel("r-0"))
                        changed = await watch.change(state, LIMIT_SEC)
                        renewed = [await each.end() for each in writers]
                        assert [each.failures for each in writers] == [[], []]
                assert changed.status == "cancelled"
                await other.submit(scheduler())
                claimed = await other.submit(claim())
                assert {each.rollout_id for each in claimed} == {f"r-{number}" for number in range(1, 5)}
                await asyncio.gather(*(one.submit(finish(each.rollout_id)) for each in claimed))
                async with one.reader.at_one_moment() as moment:
                    assert len(await moment.states([each.number for each in claimed])) == 4
            finally:
                await one.close()
                await other.close()
            assert pooler.most_sessions <= 3
            assert sum(renewed) > 0
            assert await asyncio.to_thread(audit, pooler.url) == []
            assert await asyncio.to_thread(verify_replay, pooler.url) == []
        kinds = [row[0] for row in execute(database_url, "SELECT type FROM events")]
        assert kinds.count("rollout_finished") == 5

    async def test_sessions_are_given_back_as_they_were(self, tcp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a process sets for itself must not follow others into their transactions."""
        monkeypatch.setattr(pooling, "TURN_LIMIT_SEC", 0.2)
        async with pooler_before(tcp_url, size=1) as pooler:
            connection = await connect(parse_url(pooler.url))
            # The driver by itself turns jit off when it looks types up, and leaves it so.
            look = (
                "SELECT name || ' = ' || setting FROM pg_settings WHERE source = 'session' AND name <> 'jit' ORDER BY 1"
            )
            before = await connection.fetch(look)
            ledger = await Ledger.open(pooler.url)
            await ledger.submit(admit("r-1"))
            await ledger.reader.state("r-1")
            await ledger.close()
            assert await connection.fetch(look) == before
            connection.terminate()

    async def test_schema_is_migrated(self) -> None:
        with fresh_database() as url:
            tcp = shared_server().url(make_url(url).database, tcp=True)
            async with pooler_before(tcp) as pooler:
                await asyncio.to_thread(upgrade, parse_url(pooler.url))
                ledger = await Ledger.open(pooler.url)
                await ledger.close()
