"""Why a command was not carried out.

LedgerError
├── Refusal                 decided: nothing was written for this command, others of its batch are untouched
│   ├── RolloutKnown        the id is taken, for ever
│   ├── KeyReused           the idempotency key belongs to another request
│   ├── AdmissionClosed     an operator drains the ledger or the queue; try later, or elsewhere
│   ├── QueueFull           the queue's depth limit is reached; try later
│   ├── UnknownRollout      no such rollout (or its result's retention is over)
│   │   └── RolloutArchived     its events were moved to a file, and its result with them
│   ├── WrongLease          the polling token is another rollout's or garbage
│   ├── Superseded          the attempt is not the current one any more; its result is not taken
│   ├── NotForRecord        an attempt may not record events of this type
│   ├── StillActive         the rollout is not over, or cleans up; its scores cannot be revised yet
│   ├── SchedulerGone       the scheduler was declared dead or never registered; it must register anew
│   └── QueueTaken          a live scheduler serves the queue with another entrypoint
├── CommandFailed           the database refused this one command's data; nothing of it was written
└── LedgerUnavailable       the database could not be written or read now; nothing was written, try again
"""

from __future__ import annotations

import msgspec


class LedgerError(Exception):
    """Base of everything a command can fail with."""


class Refusal(LedgerError):
    """A rule said no. The message says what to do next."""


class RolloutKnown(Refusal):
    """The id is taken."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"rollout id {rollout_id!r} is already registered; choose a new id for every attempt")
        self.rollout_id = rollout_id


class KeyReused(Refusal):
    """The idempotency key came with another request before."""

    def __init__(self, key: str, rollout_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used before, with another request, for rollout {rollout_id!r}; "
            "send a new key with every new request"
        )
        self.key = key
        self.rollout_id = rollout_id


class Closure(msgspec.Struct, frozen=True):
    """Admission is closed: to a queue, or to the whole ledger (""), since when (microseconds, UTC) and by whom."""

    queue: str
    closed_at: int
    closed_by: str


class AdmissionClosed(Refusal):
    """Admission is closed."""

    def __init__(self, closure: Closure) -> None:
        what = f"queue {closure.queue!r}" if closure.queue else "the ledger"
        super().__init__(
            f"{what} is being drained by {closure.closed_by} and takes no rollouts; "
            "open it again with `rollbook drain --off`"
        )
        self.closure = closure


class QueueFull(Refusal):
    """The queue holds as many waiting rollouts as it may."""

    def __init__(self, queue: str, depth: int) -> None:
        super().__init__(f"queue {queue!r} is full ({depth} waiting); retry later")
        self.queue = queue
        self.depth = depth


class UnknownRollout(Refusal):
    """No rollout has this id."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"no rollout {rollout_id!r}; list what there is with `rollbook rollouts`")
        self.rollout_id = rollout_id


class RolloutArchived(UnknownRollout):
    """The rollout's events, its result among them, are in an archive's file."""

    def __init__(self, rollout_id: str, place: str) -> None:
        super().__init__(rollout_id)
        self.args = (f"the events of rollout {rollout_id!r} are archived in {place}; read that file with `gunzip -c`",)
        self.place = place


class WrongLease(Refusal):
    """The token does not belong to the rollout."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"the polling token does not belong to rollout {rollout_id!r}")
        self.rollout_id = rollout_id


class Superseded(Refusal):
    """The attempt lost its rollout: another attempt has it, or it is over."""

    def __init__(self, rollout_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of rollout {rollout_id!r} is not the current one; drop its work")
        self.rollout_id = rollout_id
        self.attempt = attempt


class NotForRecord(Refusal):
    """The event is one that only the ledger makes."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"an attempt may not record {kind!r}; see docs/events.md for what it may")
        self.kind = kind


class StillActive(Refusal):
    """The rollout has not ended, or its last attempt still cleans up."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"rollout {rollout_id!r} is not over yet; wait for its end before its scores are revised")
        self.rollout_id = rollout_id


class SchedulerGone(Refusal):
    """The scheduler counts as dead."""

    def __init__(self, scheduler: str) -> None:
        super().__init__(f"scheduler {scheduler} counts as dead; stop its attempts and register anew")
        self.scheduler = scheduler


class QueueTaken(Refusal):
    """Another entrypoint already serves the queue."""

    def __init__(self, queue: str, entrypoint: str) -> None:
        super().__init__(
            f"queue {queue!r} is served by a live scheduler with entrypoint {entrypoint!r}; "
            "choose another --queue or stop that scheduler first"
        )
        self.queue = queue
        self.entrypoint = entrypoint


class CommandFailed(LedgerError):
    """The database refused this command's data."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be written (disk full, read-only, locked); the cause is chained.

    ``fix`` says what to do before trying again, where the message does not and it is no matter of a file.
    """

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix


class SchemaError(Exception):
    """The database's schema is not the one this code works with; the message names the fixing command."""
