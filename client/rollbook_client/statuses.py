"""The vocabulary of the wire: rollout statuses, error categories, cancel dispositions."""

from __future__ import annotations

from enum import StrEnum


class RolloutStatus(StrEnum):
    """Where a rollout stands, as a poll answers it.

    ``UNKNOWN`` is in the vocabulary so that a client survives a newer server; it is never terminal.
    """

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        """Whether no later status can follow."""
        return self in TERMINAL_STATUSES


TERMINAL_STATUSES = frozenset({RolloutStatus.SUCCESS, RolloutStatus.FAILURE, RolloutStatus.CANCELLED})


class RolloutErrorCategory(StrEnum):
    """Why a rollout failed; null on the wire where the failure has no category."""

    TIMEOUT = "timeout"
    LEASE_EXPIRED = "lease_expired"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    INTERNAL_ERROR = "internal_error"


class CancelDisposition(StrEnum):
    """What a cancel request found for one rollout id."""

    CANCELLED_QUEUED = "cancelled_queued"
    CANCELLED_RUNNING = "cancelled_running"
    NOT_FOUND = "not_found"
