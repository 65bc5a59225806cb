"""What statements read: no whole tables, though planned while those are empty, and no pile of old versions."""

import asyncio

import asyncpg

from rollbook.ledger.ledger import Ledger
from rollbook_projections import RolloutState
from tests.support.ledger import admit, poll
from tests.support.postgres import execute
from tests.support.processes import until

ROLLOUTS = 50
VERSIONS, TRANSACTIONS, MOST_BLOCKS = 6_000, 10, 200
_CONNECTED = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rollbook'"
)


async def sessions_ended(database_url: str) -> None:
    """Sessions tell what they did when they end."""
    await until(lambda: execute(database_url, _CONNECTED) == [(0,)], what="the end of all sessions")


async def test_rollouts_and_events_are_found_by_index_from_the_first_statement_on(database_url: str) -> None:
    text = "SELECT coalesce(sum(seq_scan), 0)::int FROM pg_stat_user_tables WHERE relname IN ('rollouts', 'events')"
    before = execute(database_url, text)
    writing, following = await Ledger.open(database_url), await Ledger.open(database_url)
    ids = [f"r-{number}" for number in range(ROLLOUTS)]
    told: set[str] = set()
    complete = asyncio.Event()

    def listen(changed: dict[int, RolloutState]) -> None:
        told.update(state.rollout_id for state in changed.values())
        if len(told) == ROLLOUTS:
            complete.set()

    following.feed.listen(listen)
    for rollout_id in ids:
        await writing.submit(admit(rollout_id))
    await asyncio.gather(*(writing.submit(poll(rollout_id)) for rollout_id in ids))
    states = [await following.reader.state(rollout_id) for rollout_id in ids]
    assert None not in states
    await asyncio.wait_for(complete.wait(), 10)
    await asyncio.gather(writing.close(), following.close())
    await sessions_ended(database_url)
    assert execute(database_url, text) == before


async def test_transactions_pass_by_no_old_versions_while_a_backup_keeps_them(database_url: str) -> None:
    blocks = "SELECT (heap_blks_read + heap_blks_hit)::int FROM pg_statio_user_tables WHERE relname = 'ledger_head'"
    write = "UPDATE ledger_head SET events = events WHERE id = 1"
    backup, writes = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        await backup.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ledger_head")
        await writes.execute("SET synchronous_commit = off")
        await writes.execute(f"DO $$ BEGIN FOR i IN 1..{VERSIONS} LOOP {write}; COMMIT; END LOOP; END $$")
        await writes.execute("SELECT pg_stat_force_next_flush()")
        ((before,),) = execute(database_url, blocks)
        ledger = await Ledger.open(database_url)
        for number in range(TRANSACTIONS):
            await ledger.submit(admit(f"r-{number}"))
        await ledger.close()
        await sessions_ended(database_url)
        ((after,),) = execute(database_url, blocks)
        assert 0 < after - before < MOST_BLOCKS
    finally:
        await backup.close()
        await writes.close()
