"""A lease is judged only over time in which it could be renewed."""

from collections.abc import Iterator

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.refusals import QueueTaken, SchedulerGone, Superseded
from tests.support.ledger import (
    DEAD_AFTER_US,
    LEASE_US,
    SECOND_US,
    Writing,
    admit,
    api,
    claim,
    enter,
    event_types,
    finish,
    poll,
    rows,
    scheduler,
)

LEASE_SEC = LEASE_US / SECOND_US
DEAD_SEC = DEAD_AFTER_US / SECOND_US


@pytest.fixture
def other(writer: Writing, database_url: str) -> Iterator[Writing]:
    """Another process's store on the same ledger, with the same clock."""
    made = Writing(database_url, writer.clock)
    yield made
    made.store.close()


def beats_pass(writer: Writing, seconds: float) -> None:
    """Time passes while an API is alive."""
    writer.clock.forward(seconds)
    writer.do(cmd.Beat("a-1"))


class TestExpiry:
    @pytest.fixture(autouse=True)
    def with_an_api(self, writer: Writing) -> None:
        writer.batch(api(), scheduler())

    def test_sweep_ends_what_nobody_polled(self, writer: Writing) -> None:
        writer.batch(admit("left"), admit("polled"))
        beats_pass(writer, LEASE_SEC / 2)
        writer.do(poll("polled"))
        beats_pass(writer, LEASE_SEC / 2)
        assert writer.do(cmd.ExpireLeases()) == 1
        left = writer.do(poll("left"))
        assert (left.status, left.err_category) == ("failure", "lease_expired")
        assert writer.do(poll("polled")).status == "queued"

    def test_sweep_takes_no_more_than_its_limit(self, writer: Writing) -> None:
        writer.batch(*(admit(f"r-{i}") for i in range(5)))
        beats_pass(writer, LEASE_SEC)
        assert [writer.do(cmd.ExpireLeases(limit=3)) for _ in range(3)] == [3, 2, 0]

    def test_unswept_rollout_is_judged_by_every_command(self, writer: Writing, database_url: str) -> None:
        writer.batch(*(admit(f"r-{i}") for i in range(4)))
        writer.do(claim(limit=2))
        beats_pass(writer, LEASE_SEC)
        assert writer.do(enter("r-0")).err_category == "lease_expired"
        assert writer.do(finish("r-1")).err_category == "lease_expired"
        assert writer.do(claim()) == ()
        for name in ("r-0", "r-1", "r-2", "r-3"):
            assert event_types(database_url, name).count("rollout_finished") == 1

    def test_failed_lease_shows_at_once_while_the_execution_cleans_up(self, writer: Writing) -> None:
        writer.do(admit())
        writer.do(claim())
        beats_pass(writer, LEASE_SEC)
        failed = writer.do(poll())
        assert (failed.status, failed.active) == ("failure", True)
        late = writer.do(finish(status="success"))
        assert (late.status, late.err_category, late.active) == ("failure", "lease_expired", False)

    def test_lease_is_not_judged_past_the_last_beat_of_an_api(self, writer: Writing) -> None:
        writer.do(admit())
        beats_pass(writer, LEASE_SEC - 1)
        writer.clock.forward(LEASE_SEC * 10)
        assert writer.do(cmd.ExpireLeases()) == 0
        (claimed,) = writer.do(claim())
        assert claimed.rollout_id == "r-1"
        assert writer.do(finish()).status == "success"

    def test_queued_deadline_is_swept(self, writer: Writing) -> None:
        writer.batch(admit("slow", agent_timeout_us=60 * SECOND_US), admit("patient"))
        writer.clock.forward(60)
        assert writer.do(cmd.ExpireDeadlines()) == 1
        assert writer.do(poll("slow")).err_category == "timeout"


class TestExtension:
    def test_first_api_extends_what_could_not_be_renewed(self, writer: Writing, database_url: str) -> None:
        writer.batch(admit("r-1"))
        writer.clock.forward(LEASE_SEC * 3)
        assert writer.do(api("a-1")) is True
        state = writer.do(poll())
        assert state.status == "queued"
        assert "lease_extended" in event_types(database_url, "r-1")
        assert writer.do(cmd.ExpireLeases()) == 0

    def test_api_beside_a_live_one_extends_nothing(self, writer: Writing, database_url: str) -> None:
        writer.batch(api("a-1"), admit("r-1"))
        writer.clock.forward(DEAD_SEC - 1)
        assert writer.do(api("a-2")) is False
        assert event_types(database_url, "r-1") == ["rollout_admitted"]

    @pytest.mark.parametrize("how", ["stale", "left", "known dead"])
    def test_api_after_a_dead_one_extends(self, writer: Writing, database_url: str, how: str) -> None:
        writer.batch(api("a-1"), admit("r-1"))
        writer.clock.forward(DEAD_SEC if how == "stale" else 1)
        if how == "left":
            writer.do(cmd.Leave("a-1"))
        assert writer.do(api("a-2", known_dead=("a-1",) if how == "known dead" else ())) is True
        assert event_types(database_url, "r-1") == ["rollout_admitted", "lease_extended"]

    def test_extension_leaves_what_is_over(self, writer: Writing, database_url: str) -> None:
        writer.batch(api("a-1"), scheduler(), admit("r-1"))
        writer.do(claim())
        writer.do(finish())
        writer.clock.forward(LEASE_SEC)
        writer.do(api("a-2"))
        assert "lease_extended" not in event_types(database_url, "r-1")

    @pytest.mark.parametrize(
        "gap_sec, extends", [(LEASE_SEC / 2 - 1, False), (LEASE_SEC / 2 + 1, True), (LEASE_SEC * 5, True)]
    )
    def test_api_writer_that_recovers_extends_before_it_judges(
        self, writer: Writing, database_url: str, gap_sec: float, extends: bool
    ) -> None:
        writer.store.guard_leases(LEASE_US // 2)
        writer.batch(api(), admit("r-1"), admit("r-2"))
        writer.clock.forward(gap_sec)
        # Nothing was written for so long: the first command would end the rollout if it were judged first.
        assert writer.do(poll("r-1")).status == "queued"
        kinds = ["rollout_admitted", *["lease_extended"] * extends, "lease_renewed"]
        assert event_types(database_url, "r-1") == kinds
        assert event_types(database_url, "r-2") == kinds[:-1]

    def test_api_that_writes_regularly_lets_leases_run_out(self, writer: Writing, database_url: str) -> None:
        writer.store.guard_leases(LEASE_US // 2)
        writer.batch(api(), admit("r-1"))
        for _ in range(4):
            beats_pass(writer, LEASE_SEC / 4)
        assert writer.do(poll("r-1")).err_category == "lease_expired"
        assert "lease_extended" not in event_types(database_url, "r-1")

    def test_writer_of_a_scheduler_extends_nothing(self, writer: Writing, database_url: str) -> None:
        writer.batch(scheduler(), admit("r-1"))
        writer.clock.forward(LEASE_SEC * 5)
        writer.do(cmd.Beat("s-1"))
        assert event_types(database_url, "r-1") == ["rollout_admitted"]


class TestSchedulers:
    def test_dead_schedulers_work_goes_back_to_the_queue(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"))
        writer.do(claim("s-1"))
        writer.clock.forward(DEAD_SEC + 1)
        writer.do(cmd.Beat("s-2"))
        assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US)) == 1
        (again,) = writer.do(claim("s-2"))
        assert (again.attempt, again.scheduler) == (2, "s-2")
        for command in (enter(), finish(), cmd.Beat("s-1"), claim("s-1")):
            with pytest.raises((Superseded, SchedulerGone)):
                writer.do(command)
        assert writer.do(finish(attempt=2, scheduler="s-2")).status == "success"

    def test_fresh_beat_guards_a_scheduler(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), admit("r-1"))
        writer.do(claim("s-1"))
        writer.clock.forward(DEAD_SEC + 1)
        _, taken = writer.batch(cmd.Beat("s-1"), cmd.TakeOver(dead_after_us=DEAD_AFTER_US))
        assert taken == 0
        assert writer.do(finish()).status == "success"

    def test_scheduler_that_left_with_open_attempts_is_taken_over(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"))
        writer.do(claim("s-1"))
        writer.do(cmd.Leave("s-1"))
        assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US)) == 1
        assert [state.attempt for state in writer.do(claim("s-2"))] == [2]

    def test_scheduler_known_to_be_dead_is_taken_over_at_once(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), admit("r-1"))
        writer.do(claim("s-1"))
        writer.do(scheduler("s-2", known_dead=("s-1",)))
        assert writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US)) == 1

    def test_takeover_takes_no_more_than_its_limit(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), *(admit(f"r-{i}") for i in range(5)))
        writer.do(claim("s-1"))
        writer.do(cmd.Leave("s-1"))
        command = cmd.TakeOver(dead_after_us=DEAD_AFTER_US, limit=3)
        assert [writer.do(command) for _ in range(3)] == [3, 2, 0]

    def test_crash_loop_ends_with_the_attempts(self, writer: Writing, database_url: str) -> None:
        writer.do(admit(max_attempts=3))
        for number in range(1, 4):
            writer.do(scheduler(f"s-{number}"))
            assert [state.attempt for state in writer.do(claim(f"s-{number}"))] == [number]
            writer.do(cmd.Leave(f"s-{number}"))
            writer.do(cmd.TakeOver(dead_after_us=DEAD_AFTER_US))
        ended = writer.do(poll())
        assert (ended.status, ended.err_category) == ("failure", "internal_error")
        ((message,),) = rows(database_url, "SELECT err_message FROM outcomes")
        assert "s-3 died" in message
        assert "all 3 of its attempts" in message

    def test_one_queue_is_served_by_one_entrypoint(self, writer: Writing) -> None:
        writer.do(scheduler("s-1", entrypoint="a.py"))
        writer.do(scheduler("s-2", entrypoint="a.py"))
        with pytest.raises(QueueTaken, match=r"a\.py"):
            writer.do(scheduler("s-3", entrypoint="b.py"))
        writer.do(scheduler("s-3", entrypoint="b.py", queues=("other",)))
        with pytest.raises(SchedulerGone):
            writer.do(cmd.Beat("nobody"))

    @pytest.mark.parametrize("how", ["stale", "left", "known dead"])
    def test_queue_of_a_dead_scheduler_is_free(self, writer: Writing, how: str) -> None:
        writer.do(scheduler("s-1", entrypoint="a.py"))
        if how == "stale":
            writer.clock.forward(DEAD_SEC)
        elif how == "left":
            writer.do(cmd.Leave("s-1"))
        writer.do(scheduler("s-2", entrypoint="b.py", known_dead=("s-1",) if how == "known dead" else ()))

    def test_members_that_stopped_long_ago_are_forgotten(self, writer: Writing, database_url: str) -> None:
        writer.do(scheduler("s-1"))
        writer.do(cmd.Leave("s-1"))
        writer.clock.forward(25 * 3600)
        writer.do(scheduler("s-2"))
        assert rows(database_url, "SELECT member_id FROM members") == [("s-2",)]
        assert rows(database_url, "SELECT member_id FROM member_queues") == [("s-2",)]


def test_two_stores_share_one_view_of_members(writer: Writing, other: Writing) -> None:
    writer.batch(api(), scheduler("s-1"), admit("r-1"))
    assert [state.rollout_id for state in other.do(claim("s-1"))] == ["r-1"]
    beats_pass(writer, LEASE_SEC)
    assert other.do(cmd.ExpireLeases()) == 1
