"""Budgets: what steps share, what segments spend, and that waiting between them costs nothing."""

import pytest

from rollbook.tasks.budget import CumulativeBudget, SharedDeadline
from tests.unit.tasks.support import Hands


def test_steps_share_one_deadline() -> None:
    hands = Hands()
    deadline = SharedDeadline(10, clock=hands)
    hands.now += 7
    assert (deadline.remaining_sec(), deadline.expired, deadline.at) == (3, False, 110)
    hands.now += 4
    assert (deadline.remaining_sec(), deadline.expired) == (0, True)


def test_no_limit_never_expires() -> None:
    hands = Hands()
    deadline, budget = SharedDeadline(None, clock=hands), CumulativeBudget(None, clock=hands)
    with budget.running():
        hands.now += 1e9
    assert (deadline.remaining_sec(), deadline.expired, deadline.at) == (None, False, None)
    assert (budget.remaining_sec(), budget.exceeded, budget.deadline) == (None, False, None)


@pytest.mark.parametrize("limit_sec", [0, -5])
def test_zero_or_less_has_expired_from_the_start(limit_sec: float) -> None:
    assert SharedDeadline(limit_sec).expired
    assert CumulativeBudget(limit_sec).exceeded


def test_budget_runs_only_while_a_segment_does() -> None:
    hands = Hands()
    budget = CumulativeBudget(10, clock=hands)
    for _ in range(3):
        hands.now += 1_000  # a user thinks
        with budget.running():
            hands.now += 3
    assert (budget.spent_sec, budget.remaining_sec(), budget.exceeded) == (9, 1, False)
    hands.now += 1_000
    with budget.running():
        assert budget.deadline == hands.now + 1
        hands.now += 2
        assert budget.exceeded
    assert (budget.spent_sec, budget.remaining_sec()) == (11, 0)


def test_what_was_queued_is_gone_but_was_not_spent() -> None:
    hands = Hands()
    budget = CumulativeBudget(10, queued_sec=4, clock=hands)
    with budget.running():
        hands.now += 5
    assert (budget.spent_sec, budget.gone_sec, budget.remaining_sec()) == (5, 9, 1)
    assert budget.said == "its budget of 10s (4.0s of it queued)"
    assert CumulativeBudget(10, queued_sec=0.05).said == "its budget of 10s"
    assert CumulativeBudget(10, queued_sec=10).exceeded


def test_segment_that_fails_is_paid_for() -> None:
    hands = Hands()
    budget = CumulativeBudget(10, clock=hands)

    def segment() -> None:
        with budget.running():
            hands.now += 4
            raise LookupError

    with pytest.raises(LookupError):
        segment()
    assert budget.remaining_sec() == 6


def test_budget_is_not_spent_twice_at_a_time() -> None:
    budget = CumulativeBudget(10)
    with budget.running(), pytest.raises(RuntimeError, match="one segment at a time"), budget.running():
        pass
