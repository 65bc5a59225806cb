"""A scheduler's share of what waits: as much as makes all schedulers equally full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.decide import Slots, fair_share


def idle(slots: int) -> Slots:
    return Slots(slots, slots)


@pytest.mark.parametrize(
    ("waiting", "mine", "others", "share"),
    [
        (10, idle(4), [], 4),
        (10, idle(8), [idle(8)], 5),
        (11, idle(8), [idle(8)], 6),
        (10, idle(2), [idle(6)], 2),
        (4, idle(2), [idle(6)], 1),
        (4, idle(6), [idle(2)], 3),
        (1, idle(1), [idle(1_000)], 1),
        (100, idle(3), [idle(5)], 3),
        # Whoever is fuller leaves the others what makes them as full.
        (5, Slots(8, 8), [Slots(3, 8)], 5),
        (5, Slots(3, 8), [Slots(8, 8)], 1),
        (7, Slots(8, 8), [Slots(3, 8)], 6),
        (5, Slots(8, 8), [Slots(0, 8), Slots(-1, 8)], 5),
        (0, idle(4), [idle(4)], 1),
    ],
)
def test_share_makes_all_equally_full(waiting: int, mine: Slots, others: list[Slots], share: int) -> None:
    assert fair_share(waiting, mine, others) == share


schedulers = st.lists(
    st.integers(1, 300).flatmap(lambda slots: st.builds(Slots, st.integers(0, slots), st.just(slots))),
    min_size=1,
    max_size=6,
)


@given(waiting=st.integers(1, 500), able=schedulers)
def test_claims_in_turn_leave_nothing_that_anybody_has_room_for(waiting: int, able: list[Slots]) -> None:
    now = list(able)
    for index, mine in enumerate(now):
        if mine.free and waiting:
            got = min(waiting, mine.free, fair_share(waiting, mine, now[:index] + now[index + 1 :]))
            waiting -= got
            now[index] = Slots(mine.free - got, mine.slots)
    assert waiting == 0 or not any(one.free for one in now)


@given(waiting=st.integers(1, 500), slots=st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_idle_schedulers_get_their_part_of_all_slots(waiting: int, slots: list[int]) -> None:
    mine, *others = map(idle, slots)
    share = fair_share(waiting, mine, others)
    if waiting >= sum(slots):
        assert share == mine.free
    else:
        assert share - 1 < waiting * mine.slots / sum(slots) <= share
