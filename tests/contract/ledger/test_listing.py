"""What operators are shown of rollouts: every number that a grader may give, and texts that nobody is called."""

from __future__ import annotations

import math

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.listing import rollouts_page
from tests.support.ledger import admit, claim, finish, scheduler


@pytest.mark.parametrize(
    ("values", "reward"),
    [
        ([1.0, 0.5], 1.5),
        ([None, 0.25], 0.25),
        ([None], None),
        ([], None),
        ([-0.0], 0.0),
        ([5e-324], 5e-324),
        ([1e308, 1e308], math.inf),
        ([-1e308, -1e308], -math.inf),
        ([0.1, 0.2, 0.3], 0.6),
    ],
    ids=str,
)
async def test_reward_of_the_last_attempt_is_the_sum_of_its_rewards(
    ledger: Ledger, values: list[float | None], reward: float | None
) -> None:
    await ledger.submit(scheduler())
    await ledger.submit(admit())
    await ledger.submit(claim())
    await ledger.submit(finish(rewards=tuple(cmd.Score(f"score {i}", value) for i, value in enumerate(values))))
    (shown,) = await rollouts_page(ledger.reader)
    assert shown.reward == (None if reward is None else pytest.approx(reward))


@pytest.mark.parametrize("text", ["nul\0", "\ud800"], ids=ascii)
async def test_texts_that_no_database_holds_are_found_nowhere(ledger: Ledger, text: str) -> None:
    await ledger.submit(admit())
    assert await rollouts_page(ledger.reader, queue=text) == []
    assert await rollouts_page(ledger.reader, prefix=text) == []
    assert await ledger.reader.events_page(rollout_id=text) == []
    assert await ledger.reader.events_page(types=(text,)) == []
    assert await ledger.reader.before_last_events(1, rollout_id=text) == 0
