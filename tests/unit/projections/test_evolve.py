"""The fold, event by event."""

from typing import Any

import msgspec
import pytest

from rollbook_client import events as ev
from rollbook_client.statuses import RolloutStatus
from rollbook_projections import FoldError, Recorded, RolloutState, evolve
from tests.support.ledger import LEASE_US, SECOND_US, START_US, History, admitted

START = ev.AttemptStarted(attempt=1, scheduler="s-1")
RUNNING = ev.PhaseEntered(attempt=1, phase="running")
SUCCESS = ev.RolloutFinished(status="success", sample=msgspec.Raw(b"{}"))


def history(*events: ev.Event, **admission: Any) -> History:
    made = History()
    made.add(admitted(**admission), *events)
    return made


def state(*events: ev.Event, **admission: Any) -> RolloutState:
    folded = history(*events, **admission).state
    assert folded is not None
    return folded


def test_admission_makes_a_waiting_rollout() -> None:
    made = history(agent_timeout_us=60 * SECOND_US)
    folded = made.state
    assert folded is not None
    assert (folded.status, folded.attempt, folded.attempts_counted, folded.scheduler) == ("queued", 0, 0, None)
    assert (folded.seq, folded.head) == (1, made.records[0].digest)
    assert (folded.admitted_at, folded.queued_at, folded.changed_at) == (START_US, START_US, START_US)
    assert folded.lease_expires_at == START_US + LEASE_US
    assert folded.agent_deadline_at == START_US + 60 * SECOND_US
    assert folded.request_position == made.records[0].position
    assert folded.claimable
    assert folded.active
    assert not folded.terminal


def test_rollout_without_agent_timeout_has_no_deadline() -> None:
    assert state().agent_deadline_at is None


@pytest.mark.parametrize("event", [ev.LeaseRenewed(expires_at=9), ev.LeaseExtended(expires_at=9, reason="no API")])
def test_lease_moves_and_nothing_else(event: ev.Event) -> None:
    made = history()
    before = made.state
    after = made.add(event, at=START_US + 1)
    assert before is not None
    assert after == msgspec.structs.replace(before, seq=2, head=after.head, lease_expires_at=9)


def test_claim_gives_the_rollout_an_owner_and_leaves_it_queued_for_clients() -> None:
    folded = state(START)
    assert (folded.status, folded.scheduler, folded.attempt, folded.attempts_counted) == ("queued", "s-1", 1, 1)
    assert not folded.claimable


def test_phases_are_the_status() -> None:
    assert state(START, RUNNING).status == "running"
    assert state(START, RUNNING, ev.PhaseEntered(attempt=1, phase="grading")).status == "grading"


@pytest.mark.parametrize("outcome, counted", [("lost", 1), ("released", 0)])
def test_ended_attempt_puts_the_rollout_back_with_a_deadline_of_its_own(
    outcome: ev.AttemptOutcome, counted: int
) -> None:
    made = history(START, RUNNING, agent_timeout_us=SECOND_US)
    folded = made.add(ev.AttemptEnded(attempt=1, outcome=outcome), at=START_US + 5)
    assert (folded.status, folded.scheduler, folded.attempts_counted) == ("queued", None, counted)
    assert (folded.queued_at, folded.agent_deadline_at) == (START_US + 5, START_US + 5 + SECOND_US)
    assert folded.claimable


def test_attempt_that_ends_after_the_terminal_event_frees_the_rollout_and_changes_no_outcome() -> None:
    made = history(START, RUNNING)
    finished = made.add(SUCCESS, at=START_US + 5)
    assert finished.active
    over = made.add(ev.AttemptEnded(attempt=1, outcome="completed"), at=START_US + 9)
    assert over == msgspec.structs.replace(finished, seq=over.seq, head=over.head, scheduler=None)
    assert not over.active


def test_terminal_event_is_referenced_by_its_position() -> None:
    made = history(START)
    folded = made.add(ev.RolloutFinished(status="failure", err_message="x", err_category="timeout"), at=START_US + 5)
    assert (folded.status, folded.err_category, folded.finished_at) == ("failure", "timeout", START_US + 5)
    assert folded.result_position == made.records[-1].position
    assert folded.terminal


def test_cancellation_request_is_noted() -> None:
    assert state(START, ev.CancellationRequested(requested_by="api", selector="all")).cancel_requested_at == START_US


@pytest.mark.parametrize(
    "event",
    [
        ev.LeaseExpired(expired_at=1),
        ev.StageTimed(attempt=1, spans=()),
        ev.RewardRecorded(attempt=1, name="r", value=1.0),
        ev.MetricRecorded(attempt=1, name="m", value=None),
    ],
)
def test_notes_move_only_the_head(event: ev.Event) -> None:
    made = history(START)
    before = made.state
    after = made.add(event)
    assert before is not None
    assert after == msgspec.structs.replace(before, seq=3, head=after.head)


def record(event: ev.Event, seq: int) -> Recorded:
    return Recorded(seq, 1, seq, START_US, b"", event)


def test_events_that_do_not_fit_together_are_refused() -> None:
    open_state = state(START)
    for before, event, seq in (
        (None, START, 1),
        (None, admitted(), 2),
        (open_state, START, 4),
        (open_state, START, 2),
        (open_state, admitted(), 3),
        (state(START, SUCCESS), SUCCESS, 4),
    ):
        with pytest.raises(FoldError, match="position"):
            evolve(before, record(event, seq))


def test_every_event_type_folds() -> None:
    folded = state(START)
    for cls in ev.EVENT_TYPES.values():
        if cls is not ev.RolloutAdmitted:
            event = cls(**{field.name: _value(field.name) for field in msgspec.structs.fields(cls) if field.required})
            assert evolve(folded, record(event, 3)).seq == 3


def _value(name: str) -> object:
    texts = {"scheduler": "s-1", "phase": "running", "outcome": "lost", "status": "failure", "spans": (), "reason": "r"}
    return texts.get(name, 1)


def test_row_is_narrow() -> None:
    folded = state(START, SUCCESS, rollout_id="0" * 36)
    size = sum(len(v) if isinstance(v, bytes | str) else 8 for v in msgspec.structs.astuple(folded) if v is not None)
    assert size < 500


def test_statuses_of_the_fold_are_those_of_the_wire() -> None:
    assert {state().status, state(START, RUNNING).status} < {status.value for status in RolloutStatus}
