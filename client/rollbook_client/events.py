"""The events of the ledger: past tense, frozen, with type names and versions that we own.

Every time is an integer of microseconds since the Unix epoch, UTC. An event carries what happened and nothing
that the envelope (position, rollout number, seq, recorded_at) already says. `docs/events.md` is the catalogue.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

AttemptOutcome = Literal["completed", "cancelled", "lost", "released"]
Phase = Literal["running", "grading"]


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of all events. ``TYPE`` and ``VERSION`` are what the ledger stores beside the payload."""

    TYPE: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1


class RolloutAdmitted(Event, frozen=True, gc=False):
    """A trainer's request was accepted.

    ``request`` is the request body's public part as JSON bytes (no key, no URL); ``endpoint_origin`` is the chat
    endpoint's scheme and host and ``endpoint_digest`` the SHA-256 of the whole URL, hex. Of the polling lease only
    the nonce and the token's SHA-256, hex, are kept. ``idempotency_key`` is the header of that name, if there was one;
    the nonce is then made of it and of the whole request, so that the same request has the same token.
    """

    TYPE: ClassVar[str] = "rollout_admitted"

    rollout_id: str
    queue: str
    max_attempts: int
    lease_nonce: str
    lease_digest: str
    lease_timeout_us: int
    lease_expires_at: int
    agent_timeout_us: int | None
    label: str | None
    endpoint_origin: str
    endpoint_digest: str
    request: msgspec.Raw
    idempotency_key: str | None = None


class LeaseRenewed(Event, frozen=True, gc=False):
    """A poll with the right token arrived in time."""

    TYPE: ClassVar[str] = "lease_renewed"

    expires_at: int


class LeaseExtended(Event, frozen=True, gc=False):
    """The lease could not have been renewed for a while (no API was alive), so it was prolonged."""

    TYPE: ClassVar[str] = "lease_extended"

    expires_at: int
    reason: str


class LeaseExpired(Event, frozen=True, gc=False):
    """Nobody polled within the lease timeout; ``expired_at`` is the deadline that passed."""

    TYPE: ClassVar[str] = "lease_expired"

    expired_at: int


class AttemptStarted(Event, frozen=True, gc=False):
    """A scheduler claimed the rollout. Attempts number from 1."""

    TYPE: ClassVar[str] = "attempt_started"

    attempt: int
    scheduler: str


class AttemptEnded(Event, frozen=True, gc=False):
    """The attempt is over and cleaned up. ``released`` attempts do not count against ``max_attempts``."""

    TYPE: ClassVar[str] = "attempt_ended"

    attempt: int
    outcome: AttemptOutcome
    reason: str | None = None


class PhaseEntered(Event, frozen=True, gc=False):
    """The attempt's workflow (``running``) or grader (``grading``) started."""

    TYPE: ClassVar[str] = "phase_entered"

    attempt: int
    phase: Phase


class StageSpan(msgspec.Struct, frozen=True, gc=False):
    """One stage of an attempt by the wall clock, in microseconds since the epoch."""

    stage: str
    started_at: int
    ended_at: int


class StageTimed(Event, frozen=True, gc=False):
    """How long stages of the attempt took; it may come several times in an attempt, for other stages each time."""

    TYPE: ClassVar[str] = "stage_timed"

    attempt: int
    spans: tuple[StageSpan, ...]


class ModelCalled(Event, frozen=True, gc=False):
    """A model was called and answered, or failed to.

    ``call`` numbers the attempt's calls from 1. Token counts are as the model's usage tells them, null where it told
    none; input tokens include those read from a cache. ``error_kind`` and ``error`` say why there is no answer.
    ``purpose`` is ``policy``, ``judge:NAME`` for the calls of a judge, ``grader`` for those of a workflow's grader.
    """

    TYPE: ClassVar[str] = "model_called"

    attempt: int
    call: int
    model: str | None
    started_at: int
    ended_at: int
    first_chunk_at: int | None = None
    streamed: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    finish_reason: str | None = None
    error_kind: str | None = None
    error: str | None = None
    purpose: str = "policy"


class ExchangeStopped(Event, frozen=True, gc=False):
    """A limit or a stop hook ended the exchange with the model; ``condition`` is its name."""

    TYPE: ClassVar[str] = "exchange_stopped"

    attempt: int
    condition: str


class MessageRewritten(Event, frozen=True, gc=False):
    """A hook changed a request before the model saw it, or a response before the program did.

    ``call`` is the model call that it belongs to; null where none was made of it. The messages are in the trace.
    """

    TYPE: ClassVar[str] = "message_rewritten"

    attempt: int
    hook: str
    side: Literal["request", "response"]
    call: int | None = None


class TraceSaved(Event, frozen=True, gc=False):
    """The whole trace of the attempt: ``data`` is its JSON, of ``size_bytes``, compressed by zlib, in base64."""

    TYPE: ClassVar[str] = "trace_saved"

    attempt: int
    version: int
    size_bytes: int
    data: str


class RewardRecorded(Event, frozen=True, gc=False):
    """A reward signal; a null value means the signal never came back, which is not a zero.

    ``scoring`` is 0 for what the attempt itself was given and n for the n-th scoring after its end.
    """

    TYPE: ClassVar[str] = "reward_recorded"

    attempt: int
    name: str
    value: float | None
    weight: float = 1.0
    scoring: int = 0


class MetricRecorded(Event, frozen=True, gc=False):
    """A named number that does not enter the reward. ``scoring`` is as in `RewardRecorded`."""

    TYPE: ClassVar[str] = "metric_recorded"

    attempt: int
    name: str
    value: float | None
    scoring: int = 0


class ScoresRevised(Event, frozen=True, gc=False):
    """A rollout that was over was scored once more: the rewards and metrics of this ``scoring`` stand before it.

    ``task`` is what it was scored with, ``by`` is who asked, and ``reward`` the weighted sum, null where no reward
    came back.
    """

    TYPE: ClassVar[str] = "scores_revised"

    task: str
    by: str
    reward: float | None
    scoring: int = 1


class CancellationRequested(Event, frozen=True, gc=False):
    """Somebody asked to end the rollout; ``selector`` is how they named it (``ids``, ``prefix:…`` or ``all``)."""

    TYPE: ClassVar[str] = "cancellation_requested"

    requested_by: str
    selector: str


class RolloutFinished(Event, frozen=True, gc=False):
    """The one terminal event of a rollout.

    ``sample`` is the sample's JSON as it goes on the wire; ``reduced`` says that its messages have no form in UTF-8
    and are left out of answers (they stay here). ``trajectory`` holds the trajectory where it differs from the
    messages; ``trajectory_saved`` is ``messages``, ``own`` or ``off``.
    """

    TYPE: ClassVar[str] = "rollout_finished"

    status: Literal["success", "failure", "cancelled"]
    sample: msgspec.Raw | None = None
    err_message: str | None = None
    err_category: str | None = None
    reduced: bool = False
    trajectory: msgspec.Raw | None = None
    trajectory_saved: Literal["messages", "own", "off"] = "off"


EVENT_TYPES: dict[str, type[Event]] = {
    cls.TYPE: cls
    for cls in (
        RolloutAdmitted,
        LeaseRenewed,
        LeaseExtended,
        LeaseExpired,
        AttemptStarted,
        AttemptEnded,
        PhaseEntered,
        StageTimed,
        ModelCalled,
        ExchangeStopped,
        MessageRewritten,
        TraceSaved,
        RewardRecorded,
        MetricRecorded,
        ScoresRevised,
        CancellationRequested,
        RolloutFinished,
    )
}

RECORDABLE: tuple[type[Event], ...] = (
    StageTimed,
    ModelCalled,
    ExchangeStopped,
    MessageRewritten,
    TraceSaved,
    RewardRecorded,
    MetricRecorded,
)
"""What an attempt may record of itself while it runs; all of them have its number in ``attempt``."""
