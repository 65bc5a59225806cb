"""Who counts as alive at the edges: a scheduler that sweeps itself, one that comes back, APIs that never left."""

from __future__ import annotations

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.refusals import SchedulerGone
from tests.support.ledger import (
    DEAD_AFTER_US,
    LEASE_US,
    Writing,
    admit,
    api,
    claim,
    enter,
    finish,
    poll,
    rows,
    scheduler,
)

DEAD_SEC = DEAD_AFTER_US / 1_000_000


def test_scheduler_that_stood_still_does_not_declare_itself_dead(writer: Writing) -> None:
    writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"))
    writer.do(claim("s-1"))
    writer.clock.forward(DEAD_SEC + 1)
    assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US, by="s-1")) == 0
    writer.do(cmd.Beat("s-1"))
    assert writer.do(finish()).status == "success"
    with pytest.raises(SchedulerGone):
        writer.do(cmd.Beat("s-2"))


def test_scheduler_that_sweeps_may_be_declared_dead_by_another(writer: Writing) -> None:
    writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"))
    writer.do(claim("s-1"))
    writer.clock.forward(DEAD_SEC + 1)
    assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US, by="s-2")) == 1
    assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US, by="s-1")) == 0
    with pytest.raises(SchedulerGone):
        writer.do(cmd.Beat("s-1"))


def test_scheduler_whose_queue_was_given_away_does_not_come_back_to_it(writer: Writing) -> None:
    writer.do(scheduler("s-1", entrypoint="a.py"))
    writer.clock.forward(DEAD_SEC)
    writer.do(scheduler("s-2", entrypoint="b.py"))
    for command in (cmd.Beat("s-1"), claim("s-1")):
        with pytest.raises(SchedulerGone):
            writer.do(command)


@pytest.mark.parametrize("queues, entrypoint", [(("q",), "a.py"), (("another",), "b.py")])
def test_registration_leaves_the_silent_alone_whose_queue_it_does_not_need(
    writer: Writing, queues: tuple[str, ...], entrypoint: str
) -> None:
    # After an outage all beats are old, those of the living too.
    writer.batch(scheduler("s-1", queues=("q",), entrypoint="a.py"), admit("r-1", queue="q"))
    writer.do(claim("s-1", queues=("q",)))
    writer.clock.forward(DEAD_SEC + 1)
    writer.do(scheduler("s-2", queues=queues, entrypoint=entrypoint))
    assert writer.do(cmd.TakeOver(dead_after_us=None, by="s-2")) == 0
    writer.do(cmd.Beat("s-1"))
    assert writer.do(finish()).status == "success"


def test_takeover_may_end_attempts_of_the_stopped_alone(writer: Writing) -> None:
    writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"), admit("r-2"))
    assert [len(writer.do(claim(name, limit=1))) for name in ("s-1", "s-2")] == [1, 1]
    writer.do(cmd.Leave("s-1"))
    writer.clock.forward(DEAD_SEC + 1)
    assert writer.do(cmd.TakeOver(dead_after_us=None)) == 1
    writer.do(cmd.Beat("s-2"))


def test_apis_that_were_killed_long_ago_are_forgotten(writer: Writing, database_url: str) -> None:
    writer.do(api("a-1"))
    writer.clock.forward(25 * 3600)
    assert writer.do(api("a-2")) is True
    assert rows(database_url, "SELECT member_id FROM members") == [("a-2",)]
    with pytest.raises(SchedulerGone):
        writer.do(cmd.Beat("a-1"))


def test_phases_reported_out_of_order_only_go_forward(writer: Writing, database_url: str) -> None:
    writer.batch(scheduler("s-1"), admit("r-1"))
    writer.do(claim())
    # A report that waited while the ledger could not be written comes after a later one.
    assert [writer.do(enter(phase=phase)).status for phase in ("grading", "running")] == ["grading", "grading"]
    assert rows(database_url, "SELECT phase FROM phases") == [("grading",)]


def test_leases_rest_once_an_api_takes_no_more_requests(writer: Writing) -> None:
    writer.store.guard_leases(LEASE_US // 2)
    writer.batch(api("a-1"), admit("r-1"))
    writer.store.stop_guarding()
    writer.do(cmd.Leave("a-1"))
    writer.clock.forward(LEASE_US / 1_000_000 * 5)
    assert writer.do(cmd.ExpireLeases()) == 0
    assert writer.do(poll("r-1")).finished_at is None
