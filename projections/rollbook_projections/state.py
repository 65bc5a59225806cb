"""The folded state of one rollout: exactly the columns of the `rollouts` table, in their order."""

from __future__ import annotations

import msgspec

from rollbook_client.events import Event
from rollbook_client.statuses import TERMINAL_STATUSES, RolloutStatus


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event with its envelope: where it stands in the ledger and when it was recorded (microseconds, UTC)."""

    position: int
    number: int
    seq: int
    recorded_at: int
    digest: bytes
    event: Event


class RolloutState(msgspec.Struct, frozen=True, gc=False):
    """What a rollout's events add up to; one row of `rollouts`.

    Request and result are referenced by their events' positions, so the row stays narrow. ``scheduler`` is the
    owner of the open attempt, null when none is open. ``attempts_counted`` leaves released attempts out.
    ``idempotency_key`` is the admission's, if it had one. Times are microseconds since the epoch, UTC.
    """

    number: int
    rollout_id: str
    seq: int
    head: bytes
    queue: str
    status: str
    attempt: int
    attempts_counted: int
    max_attempts: int
    scheduler: str | None
    lease_digest: bytes
    lease_timeout_us: int
    lease_expires_at: int
    cancel_requested_at: int | None
    admitted_at: int
    queued_at: int
    agent_timeout_us: int | None
    agent_deadline_at: int | None
    changed_at: int
    finished_at: int | None
    request_position: int
    result_position: int | None
    err_category: str | None
    idempotency_key: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether the one terminal event is recorded."""
        return self.status in TERMINAL_STATUSES

    @property
    def active(self) -> bool:
        """Not terminal, or terminal with an attempt whose clean-up is still open."""
        return self.finished_at is None or self.scheduler is not None

    @property
    def claimable(self) -> bool:
        """Waiting in its queue with no attempt open."""
        return self.status == RolloutStatus.QUEUED and self.scheduler is None
