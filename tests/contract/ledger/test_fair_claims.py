"""Several schedulers at one queue: each claim gets its share by free slots, and together they take all."""

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.refusals import SchedulerGone
from tests.support.ledger import DEAD_AFTER_US, Writing, admit, finish, rows, scheduler


def fair(name: str, free: int, *, limit: int = 100, queues: tuple[str, ...] = ("default",)) -> cmd.Claim:
    return cmd.Claim(scheduler=name, queues=queues, limit=limit, free=free)


def join(name: str, capacity: int, *, queues: tuple[str, ...] = ("default",)) -> cmd.Register:
    return msgspec.structs.replace(scheduler(name, queues=queues), capacity=capacity)


def fill(writer: Writing, count: int, *, queue: str = "default") -> None:
    writer.batch(*(admit(f"{queue}-{i}", queue=queue) for i in range(count)))


def claimed(writer: Writing, command: cmd.Claim) -> int:
    return len(writer.do(command))


def test_lone_scheduler_takes_all_it_can(writer: Writing) -> None:
    writer.batch(join("s-1", 8))
    fill(writer, 20)
    assert claimed(writer, fair("s-1", 8, limit=8)) == 8


@pytest.mark.parametrize(
    ("waiting", "first", "second", "share"),
    [(10, 8, 8, 5), (11, 8, 8, 6), (16, 8, 8, 8), (10, 8, 2, 8), (4, 2, 30, 1), (1, 8, 8, 1), (100, 8, 8, 8)],
)
def test_first_of_two_idle_schedulers_gets_its_share(
    writer: Writing, waiting: int, first: int, second: int, share: int
) -> None:
    writer.batch(join("s-1", first), join("s-2", second))
    fill(writer, waiting)
    assert claimed(writer, fair("s-1", first, limit=first)) == share


def test_what_is_left_is_for_the_other(writer: Writing) -> None:
    writer.batch(join("s-1", 8), join("s-2", 8))
    fill(writer, 10)
    assert claimed(writer, fair("s-1", 8, limit=8)) == 5
    # The first one is as full as it is to be, which the ledger knows without being told.
    assert claimed(writer, fair("s-2", 8, limit=8)) == 5


def test_slots_that_were_given_back_count_at_once(writer: Writing) -> None:
    writer.batch(join("s-1", 4), join("s-2", 4))
    fill(writer, 8)
    mine = writer.do(fair("s-1", 4, limit=4))
    writer.batch(*(finish(state.rollout_id, scheduler="s-1") for state in mine))
    assert claimed(writer, fair("s-2", 4, limit=4)) == 2


def test_who_cannot_take_anything_is_left_nothing(writer: Writing) -> None:
    writer.batch(
        join("s-1", 8),
        join("elsewhere", 8, queues=("other",)),
        join("gone", 8),
        cmd.Leave("gone"),
        join("stopping", 8),
        cmd.Beat("stopping", accepting=False, capacity=8),
        join("without-runners", 0),
    )
    fill(writer, 8)
    assert claimed(writer, fair("s-1", 8)) == 8


def test_whoever_serves_one_of_the_queues_counts(writer: Writing) -> None:
    writer.batch(join("s-1", 8, queues=("default", "other")), join("s-2", 8, queues=("other",)))
    fill(writer, 4)
    fill(writer, 4, queue="other")
    assert claimed(writer, fair("s-1", 8, queues=("default", "other"))) == 4


def test_claim_that_tells_no_free_slots_takes_what_it_may(writer: Writing) -> None:
    writer.batch(join("s-1", 8), join("s-2", 8))
    fill(writer, 8)
    assert claimed(writer, cmd.Claim("s-1", ("default",), 8)) == 8


def test_dead_scheduler_may_not_claim(writer: Writing) -> None:
    writer.batch(join("s-1", 8), join("s-2", 8))
    fill(writer, 2)
    writer.clock.forward(DEAD_AFTER_US / 1_000_000 + 1)
    writer.do(cmd.Beat("s-2", capacity=8))
    writer.do(cmd.TakeOver(DEAD_AFTER_US, by="s-2"))
    with pytest.raises(SchedulerGone):
        writer.do(fair("s-1", 8))
    assert claimed(writer, fair("s-2", 8)) == 2


def test_free_slots_of_a_beat_are_kept_for_health(writer: Writing, database_url: str) -> None:
    writer.batch(join("s-1", 8), cmd.Beat("s-1", capacity=8, free=3))
    assert rows(database_url, "SELECT free FROM members") == [(3,)]
