"""The commands a ledger takes. `Ledger.submit(command)` answers what the type parameter says.

Times and durations are integer microseconds. Commands name rollouts by the trainer's id.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rollbook_client.events import Event, ModelCalled, Phase, StageSpan, TraceSaved
from rollbook_client.statuses import CancelDisposition
from rollbook_projections import RolloutState

MemberKind = Literal["api", "scheduler"]


class Command[Answer](msgspec.Struct, frozen=True):
    """Base of all commands."""

    @property
    def size_bytes(self) -> int:
        """What it adds to its batch's size, about; commands without a payload add nothing that counts."""
        return 0


class Admit(Command[RolloutState], frozen=True):
    """Take in a rollout. Refused: KeyReused, AdmissionClosed, QueueFull, then RolloutKnown.

    One with an idempotency key that is known already answers the rollout it admitted then, whatever became of it.
    """

    rollout_id: str
    queue: str
    max_queue_depth: int | None
    max_attempts: int
    lease_nonce: str
    lease_digest: bytes
    lease_timeout_us: int
    agent_timeout_us: int | None
    label: str | None
    endpoint_origin: str
    endpoint_digest: str
    request: bytes
    sealed: bytes
    idempotency_key: str | None = None
    same_digests: tuple[bytes, ...] = ()
    """With a key: the lease digests that this very request could have got, one for each secret key in use."""

    @property
    def size_bytes(self) -> int:
        return len(self.request)


class Poll(Command[RolloutState], frozen=True):
    """Renew the lease and tell the state. Refused: UnknownRollout, WrongLease.

    A terminal rollout answers without a renewal; a poll past the lease's deadline ends the rollout.
    """

    rollout_id: str
    lease_digest: bytes


class Cancel(Command[dict[str, CancelDisposition]], frozen=True):
    """Ask to end rollouts: exactly one of ``ids``, ``prefix`` and ``everything`` selects them."""

    requested_by: str
    ids: tuple[str, ...] | None = None
    prefix: str | None = None
    everything: bool = False
    listed_since: int = 0
    """``prefix`` and ``everything`` also list rollouts that ended at or after this time, as ``not_found``."""


class Claim(Command[tuple[RolloutState, ...]], frozen=True):
    """Start attempts of the oldest waiting rollouts of these queues, ``limit`` at most. Refused: SchedulerGone.

    With ``free``, the scheduler's free slots, it gets no more than its share of what waits, and the rest is for the
    other live schedulers of these queues that have free slots too. Without it takes whatever it may.
    """

    scheduler: str
    queues: tuple[str, ...]
    limit: int
    free: int | None = None


class EnterPhase(Command[RolloutState], frozen=True):
    """The attempt's workflow or grader started. Refused: Superseded."""

    rollout_id: str
    attempt: int
    scheduler: str
    phase: Phase


class Record(Command[RolloutState], frozen=True):
    """What the attempt tells of itself while it runs. Refused: Superseded, NotForRecord.

    The events are of `rollbook_client.events.RECORDABLE`; their attempt is filled in. Once the rollout is over, scores
    are left out: what the attempt did still counts, what it is worth does not.
    """

    rollout_id: str
    attempt: int
    scheduler: str
    events: tuple[Event, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(payload_bytes, self.events))


def payload_bytes(event: Event) -> int:
    """About how large an event's payload is, where it can be large."""
    if isinstance(event, TraceSaved):
        return len(event.data)
    return len(event.error or "") if isinstance(event, ModelCalled) else 0


class Score(msgspec.Struct, frozen=True, gc=False):
    """A named reward or metric; null where the signal never came back."""

    name: str
    value: float | None


class LaterScore(msgspec.Struct, frozen=True, gc=False):
    """A score of a later scoring: a reward with its weight, or a metric, which has none. Null as in `Score`."""

    name: str
    value: float | None
    weight: float | None


class FinishAttempt(Command[RolloutState], frozen=True):
    """The attempt ran to its end, whatever the outcome. Refused: Superseded.

    The answer's status is what became of the rollout: a result after the lease's deadline is a lease failure.
    """

    rollout_id: str
    attempt: int
    scheduler: str
    status: Literal["success", "failure", "cancelled"]
    phases: tuple[Phase, ...] = ()
    """Phases that the attempt entered and that were not recorded yet."""
    sample: bytes | None = None
    reduced: bool = False
    trajectory: bytes | None = None
    trajectory_saved: Literal["messages", "own", "off"] = "off"
    err_message: str | None = None
    err_category: str | None = None
    spans: tuple[StageSpan, ...] = ()
    rewards: tuple[Score, ...] = ()
    metrics: tuple[Score, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.sample or b"") + len(self.trajectory or b"")


class CloseAttempt(Command[RolloutState], frozen=True):
    """The attempt ended without a result: its runner died (``lost``) or it was given back (``released``).

    Refused: Superseded.
    """

    rollout_id: str
    attempt: int
    scheduler: str
    outcome: Literal["lost", "released"]
    reason: str


class Rescore(Command[int], frozen=True):
    """Score a rollout that is over once more. Answers the number of this scoring, from 1.

    ``reward`` is the weighted sum of the rewards among ``scores``. ``task`` says what they come from, ``by`` who asked.
    Refused: UnknownRollout, RolloutArchived, StillActive.
    """

    rollout_id: str
    task: str
    by: str
    scores: tuple[LaterScore, ...]
    reward: float | None


class ExpireLeases(Command[int], frozen=True):
    """Sweep: end rollouts whose lease has run out. Answers how many."""

    limit: int = 500


class ExpireDeadlines(Command[int], frozen=True):
    """Sweep: end rollouts whose agent deadline passed while they waited in a queue. Answers how many."""

    limit: int = 500


class TakeOver(Command[int], frozen=True):
    """Sweep: declare schedulers without a beat for ``dead_after_us`` dead and end their attempts as lost.

    Answers how many attempts were taken over. Guarded by the beat as it stands in the same transaction. ``by`` is the
    scheduler that sweeps: whatever its last beat (its process stood still, the clock jumped), it lives. Without
    ``dead_after_us`` nobody is declared dead, and only attempts of schedulers that stopped before are ended.
    """

    dead_after_us: int | None
    by: str | None = None
    limit: int = 500


class ExtendLeases(Command[int], frozen=True):
    """Prolong every live lease by its own timeout from now. Answers how many."""

    reason: str


class Register(Command[bool], frozen=True):
    """A process joins. Refused: QueueTaken.

    For an API the answer tells whether no other one was alive, in which case live leases were extended.
    """

    member_id: str
    kind: MemberKind
    host: str
    pid: int
    dead_after_us: int
    entrypoint: str | None = None
    queues: tuple[str, ...] = ()
    capacity: int = 0
    known_dead: tuple[str, ...] = ()
    """Members of this host whose process is gone: their last beat, however fresh, does not make them alive."""


class Beat(Command[None], frozen=True):
    """A process is alive. Refused: SchedulerGone (for a scheduler that was declared dead)."""

    member_id: str
    accepting: bool = True
    capacity: int = 0
    free: int | None = None
    trouble: str | None = None


class CloseAdmission(Command[bool], frozen=True):
    """Refuse admissions to a queue, or to the whole ledger (""), until they are opened. Answers whether it was open."""

    by: str
    queue: str = ""


class OpenAdmission(Command[int], frozen=True):
    """Take admissions again: to a queue, or to all that is closed (""). Answers how many closures ended."""

    by: str
    queue: str = ""


class Leave(Command[None], frozen=True):
    """A process ends on purpose. Its open attempts, if any, stay until they are closed or taken over."""

    member_id: str
