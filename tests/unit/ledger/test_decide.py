"""The rules, one by one: what a command does to one rollout in a given state. Pure, no database."""

from typing import Any

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.decide import Facts, decide
from rollbook.ledger.refusals import QueueFull, RolloutKnown, Superseded, UnknownRollout, WrongLease
from rollbook_client import events as ev
from rollbook_projections import RolloutState
from tests.support.ledger import (
    DIGEST,
    LEASE_US,
    SECOND_US,
    START_US,
    History,
    admit,
    admitted,
    api,
    cancel,
    claim,
    close,
    enter,
    finish,
    poll,
)

NOW = START_US + 10 * SECOND_US
LATE = START_US + LEASE_US
LEASE_FAILURE = (
    ev.LeaseExpired(expired_at=LATE),
    ev.RolloutFinished(status="failure", err_message="polling lease expired", err_category="lease_expired"),
)
CANCELLED = ev.RolloutFinished(status="cancelled", err_message="cancelled")
REQUESTED = ev.CancellationRequested(requested_by="api", selector="ids")


def state(*events: ev.Event, **admission: Any) -> RolloutState:
    made = History()
    return made.add(admitted(**admission), *events)


def queued(**admission: Any) -> RolloutState:
    return state(**admission)


def running(*more: ev.Event, **admission: Any) -> RolloutState:
    start = (ev.AttemptStarted(attempt=1, scheduler="s-1"), ev.PhaseEntered(attempt=1, phase="running"))
    return state(*start, *more, **admission)


def finished(*more: ev.Event) -> RolloutState:
    """Terminal, its attempt still cleaning up."""
    return running(ev.RolloutFinished(status="failure", err_category="lease_expired"), *more)


def over() -> RolloutState:
    return finished(ev.AttemptEnded(attempt=1, outcome="completed"))


def events(
    before: RolloutState | None, command: cmd.Command[Any], *, now: int = NOW, facts: Facts | None = None
) -> Any:
    return decide(before, facts or Facts(api_seen_at=now), command, now)


class TestAdmit:
    def test_new_rollout_is_recorded_with_its_lease_from_now(self) -> None:
        (event,) = events(None, admit("r-9", agent_timeout_us=7, request=b'{"label":"x"}'))
        assert event.rollout_id == "r-9"
        assert (event.lease_expires_at, event.lease_timeout_us) == (NOW + LEASE_US, LEASE_US)
        assert (event.agent_timeout_us, bytes(event.request)) == (7, b'{"label":"x"}')
        assert event.lease_digest == DIGEST.hex()

    def test_event_has_neither_sealed_nor_other_secrets(self) -> None:
        names = {field.name for field in msgspec.structs.fields(ev.RolloutAdmitted)}
        assert not names & {"sealed", "llm_api_key", "chat_completions_url", "token"}

    @pytest.mark.parametrize("before", [queued(), running(), over()])
    def test_known_id_is_refused_for_ever(self, before: RolloutState) -> None:
        assert isinstance(events(before, admit()), RolloutKnown)

    @pytest.mark.parametrize("depth, refused", [(5, False), (6, True), (7, True)])
    def test_full_queue_is_refused(self, depth: int, refused: bool) -> None:
        answer = events(None, admit(max_queue_depth=6), facts=Facts(queued=depth, api_seen_at=NOW))
        assert isinstance(answer, QueueFull) == refused

    def test_full_queue_is_told_before_a_known_id(self) -> None:
        assert isinstance(events(queued(), admit(max_queue_depth=1), facts=Facts(queued=1)), QueueFull)

    def test_queue_without_a_limit_is_never_full(self) -> None:
        assert len(events(None, admit(max_queue_depth=None), facts=Facts(queued=10**9))) == 1


class TestPoll:
    def test_unknown_rollout_is_refused(self) -> None:
        assert isinstance(events(None, poll()), UnknownRollout)

    @pytest.mark.parametrize("before", [queued(), running(), over()])
    def test_wrong_token_is_refused_in_every_state(self, before: RolloutState) -> None:
        assert isinstance(events(before, poll(digest=bytes(32))), WrongLease)

    @pytest.mark.parametrize("before", [queued(), running()])
    def test_live_rollout_gets_its_lease_renewed_from_now(self, before: RolloutState) -> None:
        assert events(before, poll()) == (ev.LeaseRenewed(expires_at=NOW + LEASE_US),)

    @pytest.mark.parametrize("before", [finished(), over()])
    def test_finished_rollout_is_told_without_a_renewal_however_late(self, before: RolloutState) -> None:
        assert events(before, poll(), now=LATE * 2) == ()

    @pytest.mark.parametrize("now, expired", [(LATE - 1, False), (LATE, True), (LATE + 1, True)])
    def test_poll_at_or_past_the_deadline_ends_the_rollout(self, now: int, expired: bool) -> None:
        assert (events(running(), poll(), now=now) == LEASE_FAILURE) == expired

    def test_lease_is_not_judged_past_the_last_sign_of_an_api(self) -> None:
        facts = Facts(api_seen_at=LATE - 1)
        assert events(queued(), cmd.ExpireLeases(), now=LATE * 2, facts=facts) == ()
        assert events(queued(), cmd.ExpireLeases(), now=LATE * 2, facts=Facts(api_seen_at=LATE)) == LEASE_FAILURE


class TestCancel:
    def test_queued_rollout_is_over_at_once(self) -> None:
        assert events(queued(), cancel("r-1")) == (REQUESTED, CANCELLED)

    def test_running_rollout_gets_a_request(self) -> None:
        assert events(running(), cancel("r-1")) == (REQUESTED,)

    def test_claimed_rollout_that_shows_as_queued_gets_a_request(self) -> None:
        claimed = state(ev.AttemptStarted(attempt=1, scheduler="s-1"))
        assert events(claimed, cancel("r-1")) == (REQUESTED,)

    def test_repeating_it_asks_for_nothing_new(self) -> None:
        assert events(running(REQUESTED), cancel("r-1")) == ()

    @pytest.mark.parametrize("before", [None, finished(), over()])
    def test_unknown_and_finished_rollouts_stay(self, before: RolloutState | None) -> None:
        assert events(before, cancel("r-1")) == ()

    def test_rollout_whose_lease_is_over_ends_as_a_lease_failure(self) -> None:
        assert events(queued(), cancel("r-1"), now=LATE) == LEASE_FAILURE

    @pytest.mark.parametrize(
        "command, selector",
        [
            (cmd.Cancel(requested_by="api", everything=True), "all"),
            (cmd.Cancel(requested_by="api", prefix="run-"), "prefix:run-"),
            (cmd.Cancel(requested_by="api", prefix=""), "prefix:"),
            (cmd.Cancel(requested_by="api", ids=("r-1",)), "ids"),
        ],
    )
    def test_selector_is_recorded(self, command: cmd.Cancel, selector: str) -> None:
        assert events(running(), command) == (ev.CancellationRequested(requested_by="api", selector=selector),)


class TestClaim:
    def test_waiting_rollout_starts_its_next_attempt(self) -> None:
        assert events(queued(), claim("s-1")) == (ev.AttemptStarted(attempt=1, scheduler="s-1"),)
        again = running(ev.AttemptEnded(attempt=1, outcome="lost"))
        assert events(again, claim("s-2")) == (ev.AttemptStarted(attempt=2, scheduler="s-2"),)

    @pytest.mark.parametrize("before", [None, running(), finished(), over()])
    def test_what_does_not_wait_is_not_claimed(self, before: RolloutState | None) -> None:
        assert events(before, claim("s-2")) == ()

    def test_expired_lease_ends_the_rollout_instead(self) -> None:
        assert events(queued(), claim(), now=LATE) == LEASE_FAILURE

    def test_passed_agent_deadline_ends_the_rollout_instead(self) -> None:
        timed, ended = events(queued(agent_timeout_us=SECOND_US), claim())
        assert timed.spans == (ev.StageSpan("queue", START_US, NOW),)
        assert (ended.status, ended.err_category) == ("failure", "timeout")


class TestAgentDeadlineInTheQueue:
    def test_message_names_the_limit_and_the_queueing(self) -> None:
        _, ended = events(queued(agent_timeout_us=300_000), cmd.ExpireDeadlines(), now=START_US + 500_000)
        assert ended.err_message.startswith("rollout exceeded its 0.3s deadline (0.5s of it queued")

    @pytest.mark.parametrize("timeout_us", [0, -5 * SECOND_US])
    def test_zero_and_less_have_already_passed(self, timeout_us: int) -> None:
        _, ended = events(queued(agent_timeout_us=timeout_us), cmd.ExpireDeadlines(), now=START_US)
        assert ended.err_message == f"rollout exceeded its {timeout_us / SECOND_US}s deadline"

    def test_poll_tells_it_though_no_scheduler_is_there_to_sweep(self) -> None:
        before = queued(agent_timeout_us=SECOND_US)
        assert [event.TYPE for event in events(before, poll())] == ["stage_timed", "rollout_finished"]
        assert events(before, poll(), now=START_US + SECOND_US - 1)[0].TYPE == "lease_renewed"

    @pytest.mark.parametrize(
        "before, now",
        [
            (queued(), LATE),
            (queued(agent_timeout_us=SECOND_US), START_US + SECOND_US - 1),
            (running(agent_timeout_us=SECOND_US), NOW),
            (over(), NOW),
            (None, NOW),
        ],
    )
    def test_others_are_left_alone(self, before: RolloutState | None, now: int) -> None:
        assert events(before, cmd.ExpireDeadlines(), now=now) == ()

    def test_attempt_given_back_waits_with_a_new_deadline(self) -> None:
        made = History()
        made.add(admitted(agent_timeout_us=SECOND_US), ev.AttemptStarted(attempt=1, scheduler="s-1"))
        again = made.add(ev.AttemptEnded(attempt=1, outcome="lost"), at=NOW)
        assert events(again, cmd.ExpireDeadlines(), now=NOW + SECOND_US - 1) == ()
        assert len(events(again, cmd.ExpireDeadlines(), now=NOW + SECOND_US)) == 2


ATTEMPT_COMMANDS = [enter, finish, close]


class TestFencing:
    @pytest.mark.parametrize("make", ATTEMPT_COMMANDS)
    @pytest.mark.parametrize("before", [None, queued(), over(), running(ev.AttemptEnded(attempt=1, outcome="lost"))])
    def test_without_an_open_attempt_nothing_lands(self, make: Any, before: RolloutState | None) -> None:
        assert isinstance(events(before, make()), Superseded)

    @pytest.mark.parametrize("make", ATTEMPT_COMMANDS)
    def test_another_attempt_or_scheduler_is_superseded(self, make: Any) -> None:
        second = (ev.AttemptEnded(attempt=1, outcome="lost"), ev.AttemptStarted(attempt=2, scheduler="s-2"))
        before = running(*second)
        assert isinstance(events(before, make(attempt=1, scheduler="s-1")), Superseded)
        assert isinstance(events(before, make(attempt=1, scheduler="s-2")), Superseded)
        assert isinstance(events(before, make(attempt=2, scheduler="s-1")), Superseded)
        assert events(before, make(attempt=2, scheduler="s-2"))

    @pytest.mark.parametrize("make", ATTEMPT_COMMANDS)
    def test_same_scheduler_cannot_write_for_its_earlier_attempt(self, make: Any) -> None:
        before = running(ev.AttemptEnded(attempt=1, outcome="released"), ev.AttemptStarted(attempt=2, scheduler="s-1"))
        assert isinstance(events(before, make(attempt=1, scheduler="s-1")), Superseded)


class TestEnterPhase:
    def test_phase_is_recorded_once(self) -> None:
        assert events(running(), enter(phase="grading")) == (ev.PhaseEntered(attempt=1, phase="grading"),)
        assert events(running(), enter(phase="running")) == ()

    def test_finished_rollout_enters_nothing(self) -> None:
        assert events(finished(), enter(phase="grading")) == ()

    def test_expired_lease_ends_the_rollout(self) -> None:
        assert events(running(), enter(phase="grading"), now=LATE) == LEASE_FAILURE


class TestFinish:
    def test_result_is_recorded_with_its_scores_before_it_and_the_end_of_the_attempt_after_it(self) -> None:
        command = finish(
            rewards=(cmd.Score("reward", 0.5),),
            metrics=(cmd.Score("tokens", None),),
            spans=(ev.StageSpan("agent", 1, 2),),
        )
        assert [event.TYPE for event in events(running(), command)] == [
            "stage_timed",
            "reward_recorded",
            "metric_recorded",
            "rollout_finished",
            "attempt_ended",
        ]

    def test_phases_that_were_not_recorded_yet_come_first(self) -> None:
        command = msgspec.structs.replace(finish(), phases=("running", "grading"))
        before = state(ev.AttemptStarted(attempt=1, scheduler="s-1"))
        kinds = [event.TYPE for event in events(before, command)]
        assert kinds[:2] == ["phase_entered", "phase_entered"]

    @pytest.mark.parametrize("status", ["success", "failure"])
    def test_outcome_is_the_commands(self, status: Any) -> None:
        *_, terminal, ended = events(running(), finish(status=status, err_message="m", err_category="c", sample=b"{}"))
        assert (terminal.status, terminal.err_message, terminal.err_category) == (status, "m", "c")
        assert bytes(terminal.sample) == b"{}"
        assert ended == ev.AttemptEnded(attempt=1, outcome="completed")

    def test_execution_that_returned_though_cancelled_ends_by_its_own_outcome(self) -> None:
        *_, terminal, _ = events(running(REQUESTED), finish())
        assert terminal.status == "success"

    def test_interrupted_execution_ends_as_cancelled(self) -> None:
        ended = ev.AttemptEnded(attempt=1, outcome="cancelled")
        assert events(running(REQUESTED), finish(status="cancelled")) == (CANCELLED, ended)

    def test_interruption_that_nobody_asked_for_is_a_lost_attempt(self) -> None:
        (ended,) = events(running(), finish(status="cancelled"))
        assert ended.outcome == "lost"

    def test_result_after_the_deadline_is_a_lease_failure(self) -> None:
        *failure, ended = events(running(), finish(), now=LATE)
        assert tuple(failure) == LEASE_FAILURE
        assert ended == ev.AttemptEnded(attempt=1, outcome="completed")

    def test_late_completion_closes_its_attempt_and_changes_nothing(self) -> None:
        command = finish(spans=(ev.StageSpan("agent", 1, 2),))
        assert [event.TYPE for event in events(finished(), command)] == ["stage_timed", "attempt_ended"]


class TestLostAttempts:
    def test_terminal_rollout_is_only_closed(self) -> None:
        assert [event.TYPE for event in events(finished(), close())] == ["attempt_ended"]

    @pytest.mark.parametrize("outcome", ["lost", "released"])
    def test_requested_cancellation_is_carried_out(self, outcome: str) -> None:
        terminal, ended = events(running(REQUESTED), close(outcome=outcome))
        assert terminal == CANCELLED
        assert ended.outcome == outcome

    @pytest.mark.parametrize("outcome", ["lost", "released"])
    def test_rollout_with_attempts_left_goes_back_to_its_queue(self, outcome: Any) -> None:
        expected = ev.AttemptEnded(attempt=1, outcome=outcome, reason="its runner died")
        assert events(running(), close(outcome=outcome)) == (expected,)

    def test_last_attempt_fails_the_rollout_with_the_reason(self) -> None:
        terminal, _ = events(running(max_attempts=1), close())
        assert (terminal.status, terminal.err_category) == ("failure", "internal_error")
        assert terminal.err_message == "its runner died"

    def test_message_tells_how_many_attempts_were_lost(self) -> None:
        second = (ev.AttemptEnded(attempt=1, outcome="lost"), ev.AttemptStarted(attempt=2, scheduler="s-1"))
        terminal, _ = events(running(*second, max_attempts=2), close(attempt=2))
        assert terminal.err_message == "its runner died; the rollout lost all 2 of its attempts"

    def test_released_attempts_do_not_count(self) -> None:
        assert len(events(running(max_attempts=1), close(outcome="released"))) == 1
        second = (ev.AttemptEnded(attempt=1, outcome="released"), ev.AttemptStarted(attempt=2, scheduler="s-1"))
        assert running(*second, max_attempts=1).attempts_counted == 1

    def test_expired_lease_comes_first(self) -> None:
        *failure, ended = events(running(REQUESTED), close(), now=LATE)
        assert tuple(failure) == LEASE_FAILURE
        assert ended.TYPE == "attempt_ended"

    def test_take_over_names_the_dead_scheduler(self) -> None:
        (ended,) = events(running(), cmd.TakeOver(dead_after_us=1))
        assert ended.outcome == "lost"
        assert "s-1 died" in ended.reason

    @pytest.mark.parametrize("before", [None, queued(), over()])
    def test_take_over_leaves_rollouts_without_an_owner(self, before: RolloutState | None) -> None:
        assert events(before, cmd.TakeOver(dead_after_us=1)) == ()

    def test_take_over_past_the_deadline_is_a_lease_failure(self) -> None:
        *failure, ended = events(running(), cmd.TakeOver(dead_after_us=1), now=LATE)
        assert tuple(failure) == LEASE_FAILURE
        assert ended.outcome == "lost"


class TestExtendLeases:
    @pytest.mark.parametrize("before", [queued(), running()])
    def test_live_lease_lasts_its_own_timeout_from_now(self, before: RolloutState) -> None:
        extended = (ev.LeaseExtended(expires_at=NOW + LEASE_US, reason="why"),)
        assert events(before, cmd.ExtendLeases(reason="why")) == extended

    def test_lease_that_passed_while_nobody_could_renew_lives_again(self) -> None:
        assert len(events(queued(), cmd.ExtendLeases(reason="why"), now=LATE * 2)) == 1

    def test_lease_is_never_shortened_or_written_twice(self) -> None:
        assert events(queued(), cmd.ExtendLeases(reason="why"), now=START_US) == ()

    @pytest.mark.parametrize("before", [None, finished(), over()])
    def test_finished_rollouts_have_no_lease(self, before: RolloutState | None) -> None:
        assert events(before, cmd.ExtendLeases(reason="why")) == ()


def test_expired_leases_are_swept_from_live_rollouts_only() -> None:
    assert events(running(), cmd.ExpireLeases(), now=LATE) == LEASE_FAILURE
    assert events(over(), cmd.ExpireLeases(), now=LATE * 2) == ()
    assert events(None, cmd.ExpireLeases()) == ()


def test_commands_without_a_rollout_have_no_rules_here() -> None:
    with pytest.raises(KeyError):
        decide(None, Facts(), api(), NOW)
