"""A scheduler's share of what waits, by its part of all free slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.decide import fair_share

counts = st.integers(1, 10_000)


@pytest.mark.parametrize(
    ("waiting", "free", "elsewhere", "share"),
    [(10, 4, 0, 10), (10, 4, 4, 5), (11, 4, 4, 6), (10, 1, 9, 1), (1, 1, 999, 1), (3, 8, 1, 3), (0, 4, 4, 1)],
)
def test_share_is_rounded_up_and_at_least_one(waiting: int, free: int, elsewhere: int, share: int) -> None:
    assert fair_share(waiting, free=free, free_elsewhere=elsewhere) == share


@given(waiting=counts, slots=st.lists(counts, min_size=1, max_size=9))
def test_shares_leave_nothing_and_give_little_too_much(waiting: int, slots: list[int]) -> None:
    shares = [fair_share(waiting, free=free, free_elsewhere=sum(slots) - free) for free in slots]
    assert waiting <= sum(shares) < waiting + len(slots)
    assert all(share <= waiting for share in shares)
