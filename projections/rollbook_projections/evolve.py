"""The fold: `evolve(state, recorded) -> state`, pure, one function per event type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rollbook_client import events as ev
from rollbook_client.statuses import RolloutStatus

from .state import Recorded, RolloutState


class FoldError(Exception):
    """The events of a rollout do not fit together; the ledger was damaged or written by foreign code."""


def _admitted(state: RolloutState | None, record: Recorded, event: ev.RolloutAdmitted) -> RolloutState:
    if state is not None:
        raise FoldError(f"rollout {record.number} was admitted twice (position {record.position})")
    at = record.recorded_at
    return RolloutState(
        number=record.number,
        rollout_id=event.rollout_id,
        seq=record.seq,
        head=record.digest,
        queue=event.queue,
        status=RolloutStatus.QUEUED.value,
        attempt=0,
        attempts_counted=0,
        max_attempts=event.max_attempts,
        scheduler=None,
        lease_digest=bytes.fromhex(event.lease_digest),
        lease_timeout_us=event.lease_timeout_us,
        lease_expires_at=event.lease_expires_at,
        cancel_requested_at=None,
        admitted_at=at,
        queued_at=at,
        agent_timeout_us=event.agent_timeout_us,
        agent_deadline_at=None if event.agent_timeout_us is None else at + event.agent_timeout_us,
        changed_at=at,
        finished_at=None,
        request_position=record.position,
        result_position=None,
        err_category=None,
        idempotency_key=event.idempotency_key,
    )


def _lease_moved(state: RolloutState, record: Recorded, event: ev.LeaseRenewed | ev.LeaseExtended) -> RolloutState:
    return replace(state, seq=record.seq, head=record.digest, lease_expires_at=event.expires_at)


def _noted(state: RolloutState, record: Recorded, event: ev.Event) -> RolloutState:
    return replace(state, seq=record.seq, head=record.digest)


def _attempt_started(state: RolloutState, record: Recorded, event: ev.AttemptStarted) -> RolloutState:
    return replace(
        state,
        seq=record.seq,
        head=record.digest,
        attempt=event.attempt,
        attempts_counted=state.attempts_counted + 1,
        scheduler=event.scheduler,
    )


def _attempt_ended(state: RolloutState, record: Recorded, event: ev.AttemptEnded) -> RolloutState:
    counted = state.attempts_counted - (event.outcome == "released")
    if state.finished_at is not None:
        return replace(state, seq=record.seq, head=record.digest, attempts_counted=counted, scheduler=None)
    # The rollout goes back to its queue and its agent deadline starts anew.
    at = record.recorded_at
    return replace(
        state,
        seq=record.seq,
        head=record.digest,
        attempts_counted=counted,
        scheduler=None,
        status=RolloutStatus.QUEUED.value,
        queued_at=at,
        agent_deadline_at=None if state.agent_timeout_us is None else at + state.agent_timeout_us,
        changed_at=at,
    )


def _phase_entered(state: RolloutState, record: Recorded, event: ev.PhaseEntered) -> RolloutState:
    return replace(state, seq=record.seq, head=record.digest, status=event.phase, changed_at=record.recorded_at)


def _cancellation_requested(state: RolloutState, record: Recorded, event: ev.CancellationRequested) -> RolloutState:
    return replace(state, seq=record.seq, head=record.digest, cancel_requested_at=record.recorded_at)


def _finished(state: RolloutState, record: Recorded, event: ev.RolloutFinished) -> RolloutState:
    if state.finished_at is not None:
        raise FoldError(f"rollout {record.number} was finished twice (position {record.position})")
    return replace(
        state,
        seq=record.seq,
        head=record.digest,
        status=event.status,
        changed_at=record.recorded_at,
        finished_at=record.recorded_at,
        result_position=record.position,
        err_category=event.err_category,
    )


_FOLDS: dict[type[ev.Event], Callable[[Any, Recorded, Any], RolloutState]] = {
    ev.RolloutAdmitted: _admitted,
    ev.LeaseRenewed: _lease_moved,
    ev.LeaseExtended: _lease_moved,
    ev.LeaseExpired: _noted,
    ev.AttemptStarted: _attempt_started,
    ev.AttemptEnded: _attempt_ended,
    ev.PhaseEntered: _phase_entered,
    ev.StageTimed: _noted,
    ev.ModelCalled: _noted,
    ev.ExchangeStopped: _noted,
    ev.MessageRewritten: _noted,
    ev.TraceSaved: _noted,
    ev.RewardRecorded: _noted,
    ev.MetricRecorded: _noted,
    ev.ScoresRevised: _noted,
    ev.CancellationRequested: _cancellation_requested,
    ev.RolloutFinished: _finished,
}


def evolve(state: RolloutState | None, record: Recorded) -> RolloutState:
    """The state after one more event.

    Raises:
        FoldError: the event does not follow from the state (a gap in seq, a second admission or ending, an event
            before the admission).
    """
    if state is None:
        if record.seq != 1 or type(record.event) is not ev.RolloutAdmitted:
            raise FoldError(f"rollout {record.number} has no admission before position {record.position}")
    elif record.seq != state.seq + 1:
        raise FoldError(f"rollout {record.number}: seq {record.seq} follows {state.seq} at position {record.position}")
    return _FOLDS[type(record.event)](state, record, record.event)
