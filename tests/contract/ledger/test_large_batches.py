"""Large payloads that wait together: they are written in parts, and what is small goes before them."""

import asyncio

import pytest

from rollbook.ledger import writer
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.replay import verify_replay
from tests.support.ledger import admit, claim, finish, poll, rows, scheduler

SIZE = 50_000


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_BATCH_BYTES", 2 * SIZE + 1_000)
    monkeypatch.setattr(writer, "LIGHT_BYTES", 1_000)


async def test_small_commands_are_written_before_a_queue_of_large_ones(ledger: Ledger, database_url: str) -> None:
    request = b'{"x":"' + b"x" * SIZE + b'"}'
    large = [admit(f"large-{number}", request=request) for number in range(5)]
    await asyncio.gather(*(ledger.submit(command) for command in [*large, admit("small")]))
    written = rows(database_url, "SELECT rollout_id, admitted_at FROM rollouts ORDER BY number")
    assert [rollout_id for rollout_id, _ in written] == ["small", *(f"large-{number}" for number in range(5))]
    assert len({admitted_at for _, admitted_at in written}) == 4  # a time for each transaction


async def test_results_that_wait_together_all_land(ledger: Ledger, database_url: str) -> None:
    ids = [f"r-{number}" for number in range(20)]
    await asyncio.gather(*(ledger.submit(admit(rollout_id)) for rollout_id in ids))
    await ledger.submit(scheduler("s-1"))
    await ledger.submit(claim(limit=len(ids)))
    sample = b'{"messages":[{"role":"user","content":"' + b"x" * SIZE + b'"}],"reward":1.0}'
    states = await asyncio.gather(
        *(ledger.submit(finish(rollout_id, sample=sample)) for rollout_id in ids), ledger.submit(poll("r-19"))
    )
    assert [state.status for state in states[:-1]] == ["success"] * len(ids)
    assert not states[-1].terminal
    assert rows(database_url, "SELECT count(*) FROM events WHERE type = 'rollout_finished'") == [(len(ids),)]
    assert verify_replay(database_url) == []
