"""A server that is restarted, turns read-only or has no connection left, under load: errors meanwhile at worst, then
everything goes on by itself and nothing was written twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres import reads, store
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from rollbook_projections import RolloutState
from tests.contract.postgres.neighbours import LIMIT_SEC, neighbours
from tests.support.ledger import admit, poll
from tests.support.postgres import PrivateServer, execute, private_server
from tests.support.postgres_server import StopMode

CALLERS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with private_server() as started:
        yield started


@pytest.fixture
def database_url(server: PrivateServer) -> str:
    name = f"ledger_{uuid4().hex}"
    execute(server.url(), f"CREATE DATABASE {name}")
    upgrade(parse_url(server.url(name)))
    return server.url(name)


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(database_url)
    yield opened
    await opened.close()


class Load:
    """Callers that admit rollouts one after the other, and remember what they were answered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.admitted: list[str] = []
        self.failed: dict[str, Exception] = {}
        self._answered = asyncio.Event()
        self._ending = False
        self._tasks = [asyncio.create_task(self._call(f"c{number}")) for number in range(CALLERS)]

    async def _call(self, name: str) -> None:
        number = 0
        while not self._ending:
            number += 1
            rollout_id = f"{name}-{number}"
            try:
                await self._ledger.submit(admit(rollout_id))
                assert await self._ledger.reader.state(rollout_id) is not None
            except LedgerUnavailable as error:
                self.failed[rollout_id] = error
                continue
            self.admitted.append(rollout_id)
            self._answered.set()

    async def more(self, count: int = 50) -> None:
        """Wait until so many more were admitted."""
        count += len(self.admitted)
        async with asyncio.timeout(LIMIT_SEC):
            while len(self.admitted) < count:
                assert not any(task.done() for task in self._tasks)
                self._answered.clear()
                await self._answered.wait()

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)


def ids(database_url: str) -> list[str]:
    return [row[0] for row in execute(database_url, "SELECT rollout_id FROM rollouts")]


def assert_whole(database_url: str) -> None:
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
async def test_restart_under_load_loses_and_repeats_nothing(
    server: PrivateServer, database_url: str, ledger: Ledger, mode: StopMode
) -> None:
    await ledger.submit(admit("r-0"))
    load = Load(ledger)
    await load.more()
    async with neighbours(database_url, count=1, rollouts=1) as (other,):
        await asyncio.to_thread(server.restart, mode)
        await load.more()
        await other.more()
        await load.end()
        renewed = await other.end()
    found = ids(database_url)
    assert {"r-0", *load.admitted} <= set(found)
    for rollout_id in set(found) - {"r-0", *load.admitted}:
        assert "not known" in str(load.failed[rollout_id]) or "read" in str(load.failed[rollout_id])
    assert len(found) + renewed == execute(database_url, "SELECT count(*) FROM events")[0][0]
    assert_whole(database_url)


async def test_restart_within_the_retry_time_is_not_noticed(
    server: PrivateServer, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_SEC", LIMIT_SEC)
    monkeypatch.setattr(reads, "RETRY_SEC", LIMIT_SEC)
    load = Load(ledger)
    await load.more()
    await asyncio.to_thread(server.restart)
    await load.more()
    await load.end()
    assert load.failed == {}


async def test_ledger_is_told_to_be_away_while_the_server_is_stopped(
    server: PrivateServer, database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_SEC", 0.2)
    monkeypatch.setattr(reads, "RETRY_SEC", 0.2)
    await ledger.submit(admit("r-1"))
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match="cannot be written"):
                await ledger.submit(poll("r-1"))
            with pytest.raises(LedgerUnavailable, match="cannot be read"):
                await ledger.reader.state("r-1")
        with pytest.raises(LedgerUnavailable):
            await Ledger.open(database_url)
    finally:
        server.start()
    assert (await ledger.submit(poll("r-1"))).seq == 2
    assert await ledger.reader.state("r-1") is not None


async def test_read_only_server_is_an_error_until_it_takes_writes(
    server: PrivateServer, database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby is, to which the address leads while a failover is under way."""
    monkeypatch.setattr(store, "RETRY_SEC", 0.2)
    await ledger.submit(admit("r-1"))
    execute(server.superuser_url(), "ALTER SYSTEM SET default_transaction_read_only = on")
    execute(server.superuser_url(), "SELECT pg_reload_conf()")
    try:
        await until_it_fails(ledger, "read-only")
        before = await ledger.reader.state("r-1")
    finally:
        execute(server.superuser_url(), "ALTER SYSTEM RESET default_transaction_read_only")
        execute(server.superuser_url(), "SELECT pg_reload_conf()")
    assert before is not None
    after = await until_it_works(ledger)
    assert after.seq == before.seq + 1
    assert_whole(database_url)


async def until_it_fails(ledger: Ledger, text: str) -> None:
    """Sessions hear of new settings after a while."""

    async def write() -> None:
        while True:
            await ledger.submit(poll("r-1"))

    async with asyncio.timeout(LIMIT_SEC):
        with pytest.raises(LedgerUnavailable, match=text):
            await write()


async def until_it_works(ledger: Ledger) -> RolloutState:
    async with asyncio.timeout(LIMIT_SEC):
        while True:
            with contextlib.suppress(LedgerUnavailable):
                return await ledger.submit(poll("r-1"))


async def test_too_many_connections_are_an_error_until_there_are_fewer(
    server: PrivateServer, database_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_SEC", 0.2)
    monkeypatch.setattr(reads, "RETRY_SEC", 0.2)
    await ledger.submit(admit("r-1"))
    name = make_url(database_url).database
    execute(server.superuser_url(), f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    execute(server.superuser_url(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
    with pytest.raises(LedgerUnavailable, match="too many connections"):
        await ledger.submit(poll("r-1"))
    with pytest.raises(LedgerUnavailable, match="too many connections"):
        await ledger.reader.state("r-1")
    execute(server.superuser_url(), f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    assert (await ledger.submit(poll("r-1"))).seq == 2
    assert await ledger.reader.state("r-1") is not None
