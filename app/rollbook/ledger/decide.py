"""The rules. `decide(state, facts, command, now) -> events | refusal`, pure: no I/O, no clock, no SQL.

Each command is judged for one rollout; commands that select several rollouts are decided once for each. Where a
command needs to know more than the rollout's state, the `facts`, read in the same transaction, carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from rollbook_client import events as ev
from rollbook_client.statuses import RolloutErrorCategory
from rollbook_projections import RolloutState

from . import commands as cmd
from .refusals import (
    AdmissionClosed,
    Closure,
    KeyReused,
    NotForRecord,
    QueueFull,
    Refusal,
    RolloutKnown,
    StillActive,
    Superseded,
    UnknownRollout,
    WrongLease,
)

Decision = tuple[ev.Event, ...] | Refusal

LEASE_EXPIRED_MESSAGE = "polling lease expired"
CANCELLED_MESSAGE = "cancelled"
MICROSECONDS = 1_000_000
QUEUEING_WORTH_NAMING_US = 100_000


class Facts(msgspec.Struct, frozen=True):
    """What is true beyond one rollout at the time of the transaction.

    ``queued`` is how many rollouts wait in the command's queue; ``api_seen_at`` is the latest sign of life of any
    API process (now, for commands that an API process submits). ``closure`` is why nothing is admitted to the queue,
    and ``keyed`` the rollout that the command's idempotency key admitted. ``scorings`` is how often the command's
    rollout was scored after its end.
    """

    queued: int = 0
    api_seen_at: int = 0
    closure: Closure | None = None
    keyed: RolloutState | None = None
    scorings: int = 0


def lease_is_over(state: RolloutState, facts: Facts, now: int) -> bool:
    """Whether the lease's deadline passed while it could have been renewed.

    A deadline that passed after the last sign of life of any API is not judged: nobody could have polled.
    """
    return state.finished_at is None and now >= state.lease_expires_at and facts.api_seen_at >= state.lease_expires_at


def deadline_message(state: RolloutState, now: int) -> str:
    """The error of a rollout whose agent deadline passed while it was queued."""
    limit = (state.agent_timeout_us or 0) / MICROSECONDS
    queued = now - state.queued_at
    text = f"rollout exceeded its {limit}s deadline"  # it never came to a workflow or a task
    if queued >= QUEUEING_WORTH_NAMING_US:
        text += f" ({queued / MICROSECONDS:.1f}s of it queued; no slot became free in time)"
    return text


def _lease_failure(state: RolloutState) -> tuple[ev.Event, ...]:
    return (
        ev.LeaseExpired(expired_at=state.lease_expires_at),
        ev.RolloutFinished(
            status="failure",
            err_message=LEASE_EXPIRED_MESSAGE,
            err_category=RolloutErrorCategory.LEASE_EXPIRED.value,
        ),
    )


def _cancelled() -> ev.RolloutFinished:
    return ev.RolloutFinished(status="cancelled", err_message=CANCELLED_MESSAGE)


def _internal_error(reason: str) -> ev.RolloutFinished:
    return ev.RolloutFinished(
        status="failure", err_message=reason, err_category=RolloutErrorCategory.INTERNAL_ERROR.value
    )


_OfAnAttempt = cmd.EnterPhase | cmd.Record | cmd.FinishAttempt | cmd.CloseAttempt


def _holds(state: RolloutState | None, command: _OfAnAttempt) -> bool:
    return state is not None and state.scheduler == command.scheduler and state.attempt == command.attempt


def _admit(state: RolloutState | None, facts: Facts, command: cmd.Admit, now: int) -> Decision:
    # What was admitted once stays so, however full or closed the queue is now. The lease's digest is made of the whole
    # request, so it tells whether this is the same one.
    if facts.keyed is not None and command.idempotency_key is not None:
        if facts.keyed.lease_digest in command.same_digests:
            return ()
        return KeyReused(command.idempotency_key, facts.keyed.rollout_id)
    if facts.closure is not None:
        return AdmissionClosed(facts.closure)
    if command.max_queue_depth is not None and facts.queued >= command.max_queue_depth:
        return QueueFull(command.queue, facts.queued)
    if state is not None:
        return RolloutKnown(command.rollout_id)
    return (
        ev.RolloutAdmitted(
            rollout_id=command.rollout_id,
            queue=command.queue,
            max_attempts=command.max_attempts,
            lease_nonce=command.lease_nonce,
            lease_digest=command.lease_digest.hex(),
            lease_timeout_us=command.lease_timeout_us,
            lease_expires_at=now + command.lease_timeout_us,
            agent_timeout_us=command.agent_timeout_us,
            label=command.label,
            endpoint_origin=command.endpoint_origin,
            endpoint_digest=command.endpoint_digest,
            request=msgspec.Raw(command.request),
            idempotency_key=command.idempotency_key,
        ),
    )


def _poll(state: RolloutState | None, facts: Facts, command: cmd.Poll, now: int) -> Decision:
    if state is None:
        return UnknownRollout(command.rollout_id)
    if state.lease_digest != command.lease_digest:
        return WrongLease(command.rollout_id)
    if state.finished_at is not None:
        return ()
    if lease_is_over(state, facts, now):
        return _lease_failure(state)
    # No scheduler need be alive for a deadline to pass in the queue.
    return _expire_deadline(state, facts, command, now) or (ev.LeaseRenewed(expires_at=now + state.lease_timeout_us),)


def selector_name(command: cmd.Cancel) -> str:
    """How a cancel request named its rollouts, for the ledger."""
    if command.everything:
        return "all"
    return "ids" if command.prefix is None else f"prefix:{command.prefix}"


def _cancel(state: RolloutState | None, facts: Facts, command: cmd.Cancel, now: int) -> Decision:
    if state is None or state.finished_at is not None:
        return ()
    if lease_is_over(state, facts, now):
        return _lease_failure(state)
    if state.cancel_requested_at is not None:
        return ()
    request = ev.CancellationRequested(requested_by=command.requested_by, selector=selector_name(command))
    return (request, _cancelled()) if state.scheduler is None else (request,)


class Slots(msgspec.Struct, frozen=True):
    """How many slots a scheduler has, and how many of them are free."""

    free: int
    slots: int


def fair_share(waiting: int, mine: Slots, others: Iterable[Slots]) -> int:
    """How many of the waiting rollouts one scheduler may claim, so that all would be equally full; at least one.

    The parts are rounded up, and whoever is fuller than that already has none. So when each has claimed its share in
    turn, nothing is left that anybody has room for.
    """
    able = sorted((one for one in (mine, *others) if one.free > 0), key=lambda one: -one.free / one.slots)
    free = slots = 0
    for one in able:
        # All taken so far keep the part `(free - waiting) / slots` free; those that have less take no part.
        if slots and (free - waiting) * one.slots >= one.free * slots:
            break
        free += one.free
        slots += one.slots
    if free <= waiting:
        return max(1, mine.free)
    return max(1, mine.free - mine.slots * (free - waiting) // slots)


def _claim(state: RolloutState | None, facts: Facts, command: cmd.Claim, now: int) -> Decision:
    if state is None or not state.claimable:
        return ()
    over = _expire_lease(state, facts, None, now) or _expire_deadline(state, facts, None, now)
    if over:
        return over
    return (ev.AttemptStarted(attempt=state.attempt + 1, scheduler=command.scheduler),)


def _enter_phase(state: RolloutState | None, facts: Facts, command: cmd.EnterPhase, now: int) -> Decision:
    if state is None or not _holds(state, command):
        return Superseded(command.rollout_id, command.attempt)
    if lease_is_over(state, facts, now):
        return _lease_failure(state)
    if state.finished_at is not None:
        return ()
    return _phases_entered(state, (command.phase,))


def _phases_entered(state: RolloutState, phases: tuple[ev.Phase, ...]) -> tuple[ev.Event, ...]:
    """Phases only go forward within an attempt, in whatever order their reports arrive."""
    events: list[ev.Event] = []
    status = state.status
    for phase in phases:
        if status not in (phase, "grading"):
            events.append(ev.PhaseEntered(attempt=state.attempt, phase=phase))
            status = phase
    return tuple(events)


def _record(state: RolloutState | None, facts: Facts, command: cmd.Record, now: int) -> Decision:
    if state is None or not _holds(state, command):
        return Superseded(command.rollout_id, command.attempt)
    over = lease_is_over(state, facts, now)
    unscored = over or state.finished_at is not None
    events: list[ev.Event] = []
    for event in command.events:
        match event:
            case ev.RewardRecorded() | ev.MetricRecorded():
                if not unscored:
                    events.append(replace(event, attempt=state.attempt, scoring=0))
            case ev.StageTimed() | ev.ModelCalled() | ev.ExchangeStopped() | ev.MessageRewritten() | ev.TraceSaved():
                events.append(replace(event, attempt=state.attempt))
            case _:
                return NotForRecord(event.TYPE)
    return (*events, *_lease_failure(state)) if over else tuple(events)


def _finish_attempt(state: RolloutState | None, facts: Facts, command: cmd.FinishAttempt, now: int) -> Decision:
    if state is None or not _holds(state, command):
        return Superseded(command.rollout_id, command.attempt)
    attempt = command.attempt
    events: list[ev.Event] = []
    if state.finished_at is None:
        events.extend(_phases_entered(state, command.phases))
    if command.spans:
        events.append(ev.StageTimed(attempt=attempt, spans=command.spans))
    outcome: ev.AttemptOutcome = "cancelled" if command.status == "cancelled" else "completed"
    ended = ev.AttemptEnded(attempt=attempt, outcome=outcome)
    if state.finished_at is not None:
        return (*events, ended)
    if lease_is_over(state, facts, now):
        return (*events, *_lease_failure(state), ended)
    if command.status == "cancelled":
        if state.cancel_requested_at is None:
            # Nobody asked: the execution was torn down from outside, which is a lost attempt.
            return (*events, *_close(state, attempt, "lost", "the execution was cancelled though nobody asked for it"))
        return (*events, _cancelled(), ended)
    events.extend(ev.RewardRecorded(attempt=attempt, name=s.name, value=s.value) for s in command.rewards)
    events.extend(ev.MetricRecorded(attempt=attempt, name=s.name, value=s.value) for s in command.metrics)
    events.append(
        ev.RolloutFinished(
            status=command.status,
            sample=None if command.sample is None else msgspec.Raw(command.sample),
            err_message=command.err_message,
            err_category=command.err_category,
            reduced=command.reduced,
            trajectory=None if command.trajectory is None else msgspec.Raw(command.trajectory),
            trajectory_saved=command.trajectory_saved,
        )
    )
    return (*events, ended)


def _close(state: RolloutState, attempt: int, outcome: ev.AttemptOutcome, reason: str) -> tuple[ev.Event, ...]:
    """An attempt without a result: terminal, cancelled, queued again or out of attempts, in this order."""
    ended = ev.AttemptEnded(attempt=attempt, outcome=outcome, reason=reason)
    if state.finished_at is not None:
        return (ended,)
    if state.cancel_requested_at is not None:
        return (_cancelled(), ended)
    if outcome == "released" or state.attempts_counted < state.max_attempts:
        return (ended,)
    counted = state.attempts_counted
    message = f"{reason}; the rollout lost all {counted} of its attempts" if counted > 1 else reason
    return (_internal_error(message), ended)


def _close_attempt(state: RolloutState | None, facts: Facts, command: cmd.CloseAttempt, now: int) -> Decision:
    if state is None or not _holds(state, command):
        return Superseded(command.rollout_id, command.attempt)
    if lease_is_over(state, facts, now):
        ended = ev.AttemptEnded(attempt=command.attempt, outcome=command.outcome, reason=command.reason)
        return (*_lease_failure(state), ended)
    return _close(state, command.attempt, command.outcome, command.reason)


def _take_over(state: RolloutState | None, facts: Facts, command: cmd.TakeOver, now: int) -> Decision:
    if state is None or state.scheduler is None:
        return ()
    reason = f"scheduler {state.scheduler} died while it ran this rollout"
    if lease_is_over(state, facts, now):
        return (*_lease_failure(state), ev.AttemptEnded(attempt=state.attempt, outcome="lost", reason=reason))
    return _close(state, state.attempt, "lost", reason)


def _expire_lease(state: RolloutState | None, facts: Facts, command: object, now: int) -> tuple[ev.Event, ...]:
    return _lease_failure(state) if state is not None and lease_is_over(state, facts, now) else ()


def _expire_deadline(state: RolloutState | None, facts: Facts, command: object, now: int) -> tuple[ev.Event, ...]:
    if state is None or not state.claimable or state.agent_deadline_at is None or now < state.agent_deadline_at:
        return ()
    return (
        ev.StageTimed(
            attempt=state.attempt, spans=(ev.StageSpan(stage="queue", started_at=state.queued_at, ended_at=now),)
        ),
        ev.RolloutFinished(
            status="failure",
            err_message=deadline_message(state, now),
            err_category=RolloutErrorCategory.TIMEOUT.value,
        ),
    )


def _rescore(state: RolloutState | None, facts: Facts, command: cmd.Rescore, now: int) -> Decision:
    if state is None:
        return UnknownRollout(command.rollout_id)
    if state.active:
        return StillActive(command.rollout_id)
    scoring, attempt = facts.scorings + 1, state.attempt
    scores = (
        ev.MetricRecorded(attempt=attempt, name=s.name, value=s.value, scoring=scoring)
        if s.weight is None
        else ev.RewardRecorded(attempt=attempt, name=s.name, value=s.value, weight=s.weight, scoring=scoring)
        for s in command.scores
    )
    return (*scores, ev.ScoresRevised(task=command.task, by=command.by, reward=command.reward, scoring=scoring))


def _extend_lease(state: RolloutState | None, facts: Facts, command: cmd.ExtendLeases, now: int) -> Decision:
    if state is None or state.finished_at is not None:
        return ()
    expires_at = now + state.lease_timeout_us
    if expires_at <= state.lease_expires_at:
        return ()
    return (ev.LeaseExtended(expires_at=expires_at, reason=command.reason),)


_RULES: dict[type, Callable[[RolloutState | None, Facts, Any, int], Decision]] = {
    cmd.Admit: _admit,
    cmd.Poll: _poll,
    cmd.Cancel: _cancel,
    cmd.Claim: _claim,
    cmd.EnterPhase: _enter_phase,
    cmd.Record: _record,
    cmd.FinishAttempt: _finish_attempt,
    cmd.CloseAttempt: _close_attempt,
    cmd.TakeOver: _take_over,
    cmd.ExpireLeases: _expire_lease,
    cmd.ExpireDeadlines: _expire_deadline,
    cmd.ExtendLeases: _extend_lease,
    cmd.Rescore: _rescore,
}


def decide(state: RolloutState | None, facts: Facts, command: cmd.Command[Any], now: int) -> Decision:
    """The events that follow from a command for one rollout, or why there are none.

    An empty tuple means that the command asks for nothing new (a repeated cancel, a poll of a finished rollout).

    Raises:
        KeyError: the command is not about a rollout (registrations and beats have no rules here).
    """
    return _RULES[type(command)](state, facts, command, now)
