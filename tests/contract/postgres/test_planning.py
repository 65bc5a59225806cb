"""Statements that are planned while the ledger is empty do not read whole tables once it is not."""

import asyncio

from rollbook.ledger.ledger import Ledger
from rollbook_projections import RolloutState
from tests.support.ledger import admit, poll
from tests.support.postgres import execute
from tests.support.processes import until

ROLLOUTS = 50


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
    # Sessions tell what they did when they end.
    connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"
    await until(lambda: execute(database_url, connected, "rollbook") == [(0,)], what="the end of all sessions")
    assert execute(database_url, text) == before
