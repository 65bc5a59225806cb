"""Commands against a real database: what they answer, and that each stands for itself within its batch."""

import asyncio
from typing import Any

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import (
    CommandFailed,
    LedgerUnavailable,
    QueueFull,
    RolloutKnown,
    SchedulerGone,
    Superseded,
    UnknownRollout,
    WrongLease,
)
from rollbook.ledger.replay import verify_replay
from rollbook_client.events import RolloutFinished
from rollbook_client.statuses import CancelDisposition
from tests.support.ledger import (
    LEASE_US,
    REQUEST,
    SECOND_US,
    Writing,
    admit,
    api,
    cancel,
    claim,
    close,
    enter,
    event_types,
    finish,
    poll,
    rows,
    scheduler,
)


async def test_rollout_goes_its_whole_way(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(scheduler())
    admitted = await ledger.submit(admit("r-1", label="six"))
    assert (admitted.status, admitted.seq) == ("queued", 1)
    (claimed,) = await ledger.submit(claim())
    assert (claimed.rollout_id, claimed.attempt, claimed.scheduler) == ("r-1", 1, "s-1")
    (work,) = await ledger.reader.work([claimed])
    assert bytes(work.request.request) == REQUEST
    assert work.sealed == b"sealed"
    assert (await ledger.submit(enter())).status == "running"
    assert (await ledger.submit(poll())).status == "running"
    finished = await ledger.submit(finish(sample=b'{"reward":1.0}'))
    assert (finished.status, finished.active) == ("success", False)
    assert (await ledger.submit(poll())) == finished
    assert await ledger.reader.state("r-1") == finished
    result = await ledger.reader.result(finished)
    assert isinstance(result, RolloutFinished)
    assert result.sample is not None
    assert bytes(result.sample) == b'{"reward":1.0}'
    assert event_types(database_url, "r-1") == [
        "rollout_admitted",
        "attempt_started",
        "phase_entered",
        "lease_renewed",
        "reward_recorded",
        "rollout_finished",
        "attempt_ended",
    ]
    assert verify_replay(database_url) == []


async def test_positions_are_total_and_seqs_have_no_gaps(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(scheduler())
    names = [f"r-{i}" for i in range(40)]
    await asyncio.gather(*(ledger.submit(admit(name)) for name in names))
    await asyncio.gather(*(ledger.submit(poll(name)) for name in names), ledger.submit(claim()))
    positions = [row[0] for row in rows(database_url, "SELECT position FROM events ORDER BY position")]
    assert positions == sorted(set(positions))
    seqs = rows(database_url, "SELECT count(*), count(DISTINCT seq), min(seq), max(seq) FROM events GROUP BY number")
    assert set(seqs) == {(3, 3, 1, 3)}


def test_refusals_hurt_only_their_own_caller(writer: Writing) -> None:
    writer.batch(scheduler(), admit("known"))
    answers = writer.batch(
        admit("known"),
        admit("new"),
        poll("unknown"),
        poll("known", digest=bytes(32)),
        poll("known"),
        finish("known"),
        claim("nobody"),
        admit("full", max_queue_depth=1),
        cmd.Beat("s-1"),
        admit("last"),
    )
    refusals = {0: RolloutKnown, 2: UnknownRollout, 3: WrongLease, 5: Superseded, 6: SchedulerGone, 7: QueueFull}
    for index, answer in enumerate(answers):
        assert isinstance(answer, Exception) == (index in refusals)
        assert type(answer) is refusals.get(index, type(answer))
    assert [writer.do(poll(name)).seq for name in ("new", "last")] == [2, 2]


@pytest.mark.parametrize(
    "bad",
    [
        admit("\ud800"),
        admit("r-2", queue="\ud800"),
        admit("r-2", lease_timeout_us=2**70),
        admit("r-2", max_attempts=2**70),
    ],
    ids=["id without UTF-8", "queue without UTF-8", "time beyond 64 bits", "count beyond 64 bits"],
)
def test_data_that_the_database_refuses_fails_its_own_command_alone(writer: Writing, bad: cmd.Admit) -> None:
    answers = writer.batch(admit("before"), bad, admit("after"))
    assert isinstance(answers[1], CommandFailed)
    assert [answers[0].rollout_id, answers[2].rollout_id] == ["before", "after"]
    assert writer.do(poll("after")).rollout_id == "after"


def test_batch_carried_out_one_by_one_claims_no_positions_between_its_parts(writer: Writing) -> None:
    # Others may write between the parts. A feed that took all positions up to the last one for told would miss them.
    done = writer.store.run([admit("before"), admit("\ud800"), admit("after")])
    assert (done.first_position, done.last_position) == (2, 2)
    assert [state.rollout_id for state in done.changed.values()] == ["before", "after"]


def test_number_without_json_form_fails_its_own_command_alone(writer: Writing) -> None:
    writer.batch(scheduler(), admit("a"), admit("b"))
    writer.do(claim())
    nan = (cmd.Score("reward", float("nan")),)
    bad, good = writer.batch(finish("a", rewards=nan), finish("b"))
    assert isinstance(bad, CommandFailed)
    assert good.status == "success"
    assert writer.do(finish("a")).status == "success"


def test_later_commands_of_a_batch_see_the_earlier_ones(writer: Writing) -> None:
    writer.do(scheduler())
    first, again, polled, cancelled, later = writer.batch(
        admit("r-1"), admit("r-1"), poll("r-1"), cancel("r-1", "r-2"), poll("r-1")
    )
    assert first.seq == 1
    assert isinstance(again, RolloutKnown)
    assert polled.seq == 2
    assert cancelled == {"r-1": CancelDisposition.CANCELLED_QUEUED, "r-2": CancelDisposition.NOT_FOUND}
    assert later.status == "cancelled"


def test_queue_limit_counts_the_batch_itself(writer: Writing) -> None:
    answers = writer.batch(*(admit(f"r-{i}", max_queue_depth=3) for i in range(5)))
    assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, False, True, True]
    writer.do(cancel("r-0"))
    assert writer.do(admit("r-9", max_queue_depth=3)).rollout_id == "r-9"
    assert writer.do(admit("elsewhere", queue="other", max_queue_depth=1)).queue == "other"


class TestClaims:
    def test_oldest_come_first_and_no_more_than_asked_for(self, writer: Writing) -> None:
        writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(9, 0, -1)))
        assert [state.rollout_id for state in writer.do(claim(limit=3))] == ["r-9", "r-8", "r-7"]
        assert [state.rollout_id for state in writer.do(claim(limit=2))] == ["r-6", "r-5"]

    def test_only_its_own_queues_are_claimed(self, writer: Writing) -> None:
        writer.batch(
            scheduler(queues=("a", "b")), admit("r-a", queue="a"), admit("r-c", queue="c"), admit("r-b", queue="b")
        )
        claimed = writer.do(claim(queues=("a", "b")))
        assert [state.rollout_id for state in claimed] == ["r-a", "r-b"]

    def test_nothing_is_claimed_twice_in_one_batch(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), scheduler("s-2"), admit("r-1"))
        first, second = writer.batch(claim("s-1"), claim("s-2"))
        assert len(first) == 1
        assert second == ()

    def test_second_claim_of_a_batch_takes_what_the_first_left(self, writer: Writing) -> None:
        writer.batch(scheduler("s-1"), scheduler("s-2"), *(admit(f"r-{i}") for i in range(4)))
        first, second = writer.batch(claim("s-1", limit=2), claim("s-2", limit=2))
        assert [state.rollout_id for state in (*first, *second)] == ["r-0", "r-1", "r-2", "r-3"]

    def test_overdue_rollouts_do_not_use_up_the_limit(self, writer: Writing) -> None:
        writer.batch(scheduler(), *(admit(f"late-{i}", agent_timeout_us=0) for i in range(3)), admit("r-1"))
        assert [state.rollout_id for state in writer.do(claim(limit=1))] == ["r-1"]
        assert writer.do(poll("late-0")).err_category == "timeout"

    def test_lost_rollout_keeps_its_place_in_the_queue(self, writer: Writing) -> None:
        writer.batch(scheduler(), admit("r-1"), admit("r-2"))
        writer.do(claim(limit=1))
        writer.do(close("r-1"))
        assert [state.rollout_id for state in writer.do(claim(limit=2))] == ["r-1", "r-2"]

    def test_scheduler_that_never_registered_claims_nothing(self, writer: Writing) -> None:
        with pytest.raises(SchedulerGone):
            writer.do(claim("nobody"))


class TestCancel:
    @pytest.fixture
    def some(self, writer: Writing) -> Writing:
        writer.batch(scheduler(), admit("run-1"), admit("run-2"), admit("other"))
        writer.do(claim(limit=1))
        return writer

    def test_dispositions_say_what_was_found(self, some: Writing) -> None:
        command = cancel("run-1", "run-2", "unknown", "\ud800")
        assert some.do(command) == {
            "run-1": CancelDisposition.CANCELLED_RUNNING,
            "run-2": CancelDisposition.CANCELLED_QUEUED,
            "unknown": CancelDisposition.NOT_FOUND,
            "\ud800": CancelDisposition.NOT_FOUND,
        }
        assert some.do(cancel("run-1", "run-2")) == {
            "run-1": CancelDisposition.CANCELLED_RUNNING,
            "run-2": CancelDisposition.NOT_FOUND,
        }

    def test_id_named_twice_is_answered_once_as_it_was_found(self, some: Writing) -> None:
        assert some.do(cancel("run-2", "run-2")) == {"run-2": CancelDisposition.CANCELLED_QUEUED}

    def test_no_ids_cancel_nothing(self, some: Writing) -> None:
        assert some.do(cancel()) == {}

    def test_prefix_selects_bytewise(self, some: Writing) -> None:
        some.batch(admit("RUN-3"), admit("run%4"), admit("run_5"), admit("run"))
        found = some.do(cmd.Cancel(requested_by="api", prefix="run-"))
        assert set(found) == {"run-1", "run-2"}
        assert set(some.do(cmd.Cancel(requested_by="api", prefix="run"))) == {"run-1", "run-2", "run", "run%4", "run_5"}

    @pytest.mark.parametrize("command", [cmd.Cancel("api", prefix=""), cmd.Cancel("api", everything=True)])
    def test_empty_prefix_and_all_select_everything_live(self, some: Writing, command: cmd.Cancel) -> None:
        assert set(some.do(command)) == {"run-1", "run-2", "other"}

    def test_prefix_without_utf8_selects_nothing(self, some: Writing) -> None:
        assert some.do(cmd.Cancel(requested_by="api", prefix="\ud800")) == {}

    def test_recently_ended_ones_are_listed_as_not_found(self, some: Writing) -> None:
        some.do(cancel("other"))
        ended_at = some.clock.now
        some.clock.forward(60)
        for since, listed in ((ended_at, True), (ended_at + 1, False)):
            found = some.do(cmd.Cancel(requested_by="api", prefix="oth", listed_since=since))
            assert found == ({"other": CancelDisposition.NOT_FOUND} if listed else {})

    def test_rollouts_admitted_in_the_same_batch_are_selected(self, writer: Writing) -> None:
        _, found = writer.batch(admit("run-1"), cmd.Cancel(requested_by="api", everything=True))
        assert found == {"run-1": CancelDisposition.CANCELLED_QUEUED}


def counts(database_url: str) -> tuple[int, int]:
    ((queued, running),) = rows(database_url, "SELECT queued, running FROM queue_counts")
    return queued, running


def test_waiting_and_running_are_counted_through_the_whole_life(writer: Writing, database_url: str) -> None:
    writer.batch(api(), scheduler(), *(admit(f"r-{i}", max_attempts=2) for i in range(4)))
    assert counts(database_url) == (4, 0)
    writer.do(claim(limit=3))
    assert counts(database_url) == (1, 3)
    writer.do(finish("r-0"))
    assert counts(database_url) == (1, 2)
    writer.do(close("r-1"))
    assert counts(database_url) == (2, 1)
    writer.do(cancel("r-3"))
    assert counts(database_url) == (1, 1)
    writer.clock.forward(LEASE_US / SECOND_US)
    writer.do(cmd.Beat("a-1"))
    assert writer.do(poll("r-2")).status == "failure"
    assert counts(database_url) == (1, 1), "a failed rollout stays active until its execution has cleaned up"
    writer.do(finish("r-2"))
    assert counts(database_url) == (1, 0)


async def test_command_of_a_caller_that_left_is_carried_out_and_its_neighbours_are_answered(ledger: Ledger) -> None:
    leaving = asyncio.ensure_future(ledger.submit(admit("r-1")))
    neighbour = asyncio.ensure_future(ledger.submit(admit("r-2")))
    await asyncio.sleep(0)  # both are under way now
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    async with asyncio.timeout(30):
        assert (await neighbour).rollout_id == "r-2"
    assert (await ledger.submit(poll("r-1"))).rollout_id == "r-1"


async def test_close_writes_what_waits(database_url: str) -> None:
    ledger = await Ledger.open(database_url)
    waiting = [asyncio.ensure_future(ledger.submit(admit(f"r-{i}"))) for i in range(1_500)]
    await asyncio.sleep(0)
    await ledger.close()
    assert all(task.result().seq == 1 for task in waiting)
    with pytest.raises(LedgerUnavailable):
        await ledger.submit(poll("r-1"))
    assert rows(database_url, "SELECT count(*) FROM rollouts") == [(1_500,)]


async def test_many_callers_share_few_transactions(ledger: Ledger, database_url: str) -> None:
    await asyncio.gather(*(ledger.submit(admit(f"r-{i}")) for i in range(200)))
    times: Any = rows(database_url, "SELECT count(DISTINCT recorded_at) FROM events")
    assert times[0][0] <= 2
