"""Two processes' worth of ledgers on one database, at once."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import RolloutKnown, Superseded
from rollbook.ledger.replay import verify_replay
from rollbook_client.statuses import CancelDisposition
from rollbook_projections import RolloutState
from tests.support.ledger import (
    Writing,
    admit,
    cancel,
    claim,
    close,
    event_types,
    finish,
    poll,
    rows,
    scheduler,
)

SEEDS = range(40)


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """Each with its own writer, lock descriptor, reader and feed, as two processes have them."""
    first = await Ledger.open(database_url)
    second = await Ledger.open(database_url)
    yield first, second
    await first.close()
    await second.close()


async def at_once(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_two_claimers_of_one_rollout_make_one_attempt(pair: tuple[Ledger, Ledger], database_url: str) -> None:
    first, second = pair
    await first.submit(scheduler("s-1"))
    await second.submit(scheduler("s-2"))
    for seed in SEEDS:
        await first.submit(admit(f"r-{seed}"))
        claims = [first.submit(claim("s-1")), second.submit(claim("s-2"))]
        if seed % 2:
            claims.reverse()
        answers = await at_once(*claims)
        (state,) = [state for answer in answers for state in answer]
        assert (state.rollout_id, state.attempt) == (f"r-{seed}", 1)
    assert rows(database_url, "SELECT count(*), max(attempt) FROM attempt_starts") == [(len(SEEDS), 1)]


async def test_claimers_share_a_queue_without_overlap_or_rest(pair: tuple[Ledger, Ledger]) -> None:
    first, second = pair
    await first.submit(scheduler("s-1"))
    await second.submit(scheduler("s-2"))
    names = [f"r-{i}" for i in range(200)]
    await at_once(*(pair[i % 2].submit(admit(name)) for i, name in enumerate(names)))
    chance = random.Random(7)
    claimed: list[str] = []
    while len(claimed) < len(names):
        limits = [chance.randint(1, 9) for _ in range(6)]
        answers: list[tuple[RolloutState, ...]] = await at_once(
            *(pair[i % 2].submit(claim(f"s-{i % 2 + 1}", limit=limit)) for i, limit in enumerate(limits))
        )
        assert all(len(answer) <= limit for answer, limit in zip(answers, limits, strict=True))
        found = [state.rollout_id for answer in answers for state in answer]
        assert found
        claimed.extend(found)
    assert sorted(claimed) == sorted(names)


async def test_two_admissions_of_one_id_make_one_rollout(pair: tuple[Ledger, Ledger], database_url: str) -> None:
    for seed in SEEDS:
        answers = await at_once(pair[0].submit(admit(f"r-{seed}")), pair[1].submit(admit(f"r-{seed}")))
        assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [RolloutKnown]
    assert rows(database_url, "SELECT count(*) FROM events") == [(len(SEEDS),)]


@pytest.mark.parametrize("interrupted", [False, True], ids=["returns all the same", "is interrupted"])
async def test_cancel_and_finish_at_once_leave_one_ending_and_tell_the_loser(
    pair: tuple[Ledger, Ledger], database_url: str, interrupted: bool
) -> None:
    first, second = pair
    await second.submit(scheduler("s-1"))
    for seed in SEEDS:
        name = f"r-{seed}"
        await first.submit(admit(name))
        await second.submit(claim("s-1"))
        calls = [
            first.submit(cancel(name)),
            second.submit(finish(name, status="cancelled" if interrupted else "success")),
        ]
        if seed % 2:
            calls.reverse()
        answers = await at_once(*calls)
        if seed % 2:
            answers.reverse()
        dispositions, finished = answers
        kinds = event_types(database_url, name)
        assert kinds.count("rollout_finished") == 1
        end = await first.submit(poll(name))
        asked_first = "cancellation_requested" in kinds and kinds.index("cancellation_requested") < kinds.index(
            "attempt_ended"
        )
        if asked_first:
            assert dispositions == {name: CancelDisposition.CANCELLED_RUNNING}
            assert end == finished
            assert end.status == ("cancelled" if interrupted else "success")
        elif interrupted:
            # Torn down before anybody asked: a lost attempt, so what was cancelled is the waiting rollout.
            assert finished.status == "queued"
            assert dispositions == {name: CancelDisposition.CANCELLED_QUEUED}
            assert end.status == "cancelled"
        else:
            assert dispositions == {name: CancelDisposition.NOT_FOUND}
            assert (end, end.status) == (finished, "success")
    assert verify_replay(database_url) == []


@pytest.mark.parametrize("cancel_first", [True, False])
def test_order_of_cancel_and_finish_within_a_batch_decides(writer: Writing, cancel_first: bool) -> None:
    writer.batch(scheduler(), admit("r-1"))
    writer.do(claim())
    commands = [cancel("r-1"), finish("r-1", status="cancelled" if cancel_first else "success")]
    answers = writer.batch(*(commands if cancel_first else reversed(commands)))
    found = CancelDisposition.CANCELLED_RUNNING if cancel_first else CancelDisposition.NOT_FOUND
    assert {"r-1": found} in answers
    assert writer.do(poll("r-1")).status == ("cancelled" if cancel_first else "success")


async def test_late_result_of_a_lost_attempt_is_refused_whoever_comes_first(
    pair: tuple[Ledger, Ledger], database_url: str
) -> None:
    first, second = pair
    await first.submit(scheduler("s-1"))
    await second.submit(scheduler("s-2"))
    for seed in SEEDS:
        name = f"r-{seed}"
        await first.submit(admit(name))
        await first.submit(claim("s-1"))
        late, closed = await at_once(
            first.submit(finish(name, scheduler="s-1", status="failure", err_message="late")),
            second.submit(close(name, scheduler="s-1")),
        )
        if isinstance(late, Superseded):
            (again,) = await second.submit(claim("s-2"))
            assert again.attempt == 2
            assert isinstance(closed, RolloutState)
            assert (await second.submit(finish(name, attempt=2, scheduler="s-2"))).status == "success"
        else:
            assert late.status == "failure"
            assert isinstance(closed, Superseded)
        assert event_types(database_url, name).count("rollout_finished") == 1
    assert audit(database_url) == []


async def test_everything_at_once_stays_whole(pair: tuple[Ledger, Ledger], database_url: str) -> None:
    chance = random.Random(11)
    names = [f"r-{i}" for i in range(30)]
    await at_once(*(pair[i].submit(scheduler(f"s-{i}")) for i in range(2)))
    await at_once(*(chance.choice(pair).submit(admit(name, max_attempts=2)) for name in names))

    def draw() -> Any:
        name, who, attempt = chance.choice(names), f"s-{chance.randint(0, 1)}", chance.randint(1, 2)
        return chance.choice(
            [
                poll(name),
                claim(who, limit=chance.randint(1, 4)),
                claim(who, limit=2),
                finish(name, attempt=attempt, scheduler=who),
                close(name, attempt=attempt, scheduler=who, outcome=chance.choice(["lost", "released"])),
                cancel(name) if chance.random() < 0.1 else poll(name),
            ]
        )

    for _ in range(30):
        await at_once(*(ledger.submit(draw()) for ledger in pair for _ in range(12)))
    assert audit(database_url) == []
    assert verify_replay(database_url) == []
    endings = rows(database_url, "SELECT number, count(*) FROM outcomes GROUP BY number")
    assert endings
    assert {count for _, count in endings} == {1}
    overlaps = """
        SELECT count(*) FROM attempt_starts a JOIN attempt_starts b ON b.number = a.number AND b.attempt = a.attempt + 1
        LEFT JOIN attempt_ends e ON e.number = a.number AND e.attempt = a.attempt
        WHERE e.position IS NULL OR e.position > b.position
    """
    assert rows(database_url, overlaps) == [(0,)]
