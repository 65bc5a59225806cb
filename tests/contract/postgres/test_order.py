"""Several processes append to the same rollouts at once, and some fail midway: whoever follows `position` misses
nothing, sees nothing twice, and waits for nothing that is dead."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.postgres.store import WRITE_LOCK
from rollbook.ledger.replay import verify_replay
from tests.contract.postgres.neighbours import Follower, neighbours
from tests.contract.postgres.proxy import Link, Proxy
from tests.contract.postgres.wire import Message
from tests.support.ledger import admit, poll
from tests.support.postgres import execute
from tests.support.processes import until

ROLLOUTS = 12
WRITERS = 3
FOLLOWERS = 3
ROUNDS = 3
SEED = 20_260

HALF_WRITTEN = f"""
    BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK});
    INSERT INTO events (position, number, seq, type, version, recorded_at, payload, hash)
        SELECT position + 1, 1, 1000000, 'never_committed', 1, 1, '{{}}', '\\x00' FROM ledger_head;
    UPDATE ledger_head SET position = position + 1, events = events + 1
"""
END_SOME = """
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend' AND state IS NOT NULL ORDER BY random() LIMIT $1) chosen
"""


@pytest.fixture
async def followers(database_url: str) -> AsyncIterator[list[Follower]]:
    made = [Follower(database_url) for _ in range(FOLLOWERS)]
    yield made
    for each in made:
        await each.close()


class Disturber:
    """What happens to transactions besides ending well."""

    def __init__(self, database_url: str, proxy: Proxy, through_proxy: Ledger, followers: list[Follower]) -> None:
        self._database_url = database_url
        self._proxy = proxy
        self._through_proxy = through_proxy
        self._followers = followers
        self._renewals = 0

    async def all_look(self) -> None:
        await asyncio.gather(*(each.until(looks=2) for each in self._followers))

    async def commit_late(self) -> None:
        """A transaction that has written everything, and whose commit is held up while others look and wait."""

        async def late(_link: Link, message: Message) -> bool:
            if message.asks("COMMIT"):
                await self.all_look()
            return True

        self._proxy.judge = late
        await self._through_proxy.submit(poll("r-0"))

    async def lose_the_commit(self) -> None:
        """A connection that is cut when the transaction is committed, on this side or on that."""
        cut = False

        async def lose(link: Link, message: Message) -> bool:
            nonlocal cut
            if not cut and message.asks("COMMIT"):
                cut = True
                link.cut_client()
                return random.random() < 0.5
            return True

        self._proxy.judge = lose
        await self._through_proxy.submit(poll("r-0"))

    async def hold_the_lock(self) -> None:
        """A session that takes the writers' lock and thinks for a while."""
        connection = await asyncpg.connect(self._database_url)
        try:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
                await self.all_look()
        finally:
            await connection.close()

    async def roll_back(self) -> None:
        """A transaction that writes an event and takes it back, after others looked."""
        connection = await asyncpg.connect(self._database_url)
        try:
            await connection.execute(HALF_WRITTEN)
            await self.all_look()
            await connection.execute("ROLLBACK")
        finally:
            await connection.close()

    async def vanish(self) -> None:
        """A transaction that writes an event, and whose process is gone without a word."""
        connection = await asyncpg.connect(self._database_url)
        await connection.execute(HALF_WRITTEN)
        await self.all_look()
        connection.terminate()

    async def end_sessions(self) -> None:
        """An administrator, or a network, that ends a few sessions whatever they do."""
        execute(self._database_url, END_SOME, 4)

    @property
    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.commit_late,
            self.lose_the_commit,
            self.hold_the_lock,
            self.roll_back,
            self.vanish,
            self.end_sessions,
        ]


async def test_followers_see_every_position_once_whatever_becomes_of_transactions(
    database_url: str, ledger: Ledger, proxy: Proxy, proxied: Ledger, followers: list[Follower]
) -> None:
    random.seed(SEED)
    await asyncio.gather(*(ledger.submit(admit(f"r-{number}")) for number in range(ROLLOUTS)))
    disturber = Disturber(database_url, proxy, proxied, followers)
    rounds = [kind for kind in disturber.kinds for _ in range(ROUNDS)]
    random.shuffle(rounds)

    async with neighbours(database_url, count=WRITERS, rollouts=ROLLOUTS) as writers:
        for disturb in rounds:
            await disturb()
            await asyncio.gather(*(each.more() for each in writers))
        renewed = sum([await each.end() for each in writers])
        assert [each.failures for each in writers] == [[]] * WRITERS

    own = 2 * ROUNDS
    rows = execute(database_url, "SELECT position, number, type FROM events ORDER BY position")
    await asyncio.gather(*(each.until(position=rows[-1][0]) for each in followers))
    for follower in followers:
        assert follower.seen == rows
    await until(lambda: ledger.feed.position == rows[-1][0], what="the feed at the end of the ledger")
    kinds = [row[2] for row in rows]
    assert (kinds.count("rollout_admitted"), kinds.count("lease_renewed")) == (ROLLOUTS, renewed + own)
    assert len(kinds) == ROLLOUTS + renewed + own
    assert audit(database_url) == []
    assert verify_replay(database_url) == []
