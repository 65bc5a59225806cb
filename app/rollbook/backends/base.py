"""The contract of execution backends: what one is asked, what it answers. Beside it, one module per backend."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from rollbook.sdk.sample import RolloutSample
from rollbook.sdk.span import StageSpan
from rollbook.sdk.values import MessageDict
from rollbook_client.identifiers import validate_rollout_id
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

__all__ = ["ExecutionBackend", "ExecutionOutcome", "ExecutionRequest", "ExecutionResult", "StageSpan"]


class ExecutionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of one rollout.

    Timeouts are seconds; None is unbounded, zero or negative means already expired. `queued_sec` is how long the
    rollout had waited before this request was made; it counts against `agent_timeout_sec`. Raises ``ValueError`` for
    an id that is not one path segment and for numbers that are not finite.
    """

    id: str
    prompt: list[MessageDict]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    grade: bool = True
    queued_sec: float = 0.0

    def __post_init__(self) -> None:
        validate_rollout_id(self.id)
        for name in ("agent_timeout_sec", "grader_timeout_sec", "queued_sec"):
            seconds = getattr(self, name)
            if seconds is not None and not math.isfinite(seconds):
                raise ValueError(f"{name} must be finite, got {seconds}; leave it out for no deadline")


class ExecutionResult(msgspec.Struct, kw_only=True):
    """How the workflow, or the grader, ended. `extra_fields` are diagnostics that never reach the trainer."""

    status: RolloutStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] | None = None


class ExecutionOutcome(msgspec.Struct, kw_only=True):
    """The workflow's result, the grader's if it was its turn, and what each stage took."""

    workflow: ExecutionResult
    grader: ExecutionResult | None = None
    spans: tuple[StageSpan, ...] = ()

    @property
    def result(self) -> ExecutionResult:
        """The rollout's result: the grader's once the workflow succeeded, else the workflow's.

        A failed workflow keeps a sample that only the grader's side of the backend could recover.
        """
        if self.workflow.status is RolloutStatus.SUCCESS:
            return self.grader or self.workflow
        if self.workflow.sample is None and self.grader is not None and self.grader.sample is not None:
            return msgspec.structs.replace(self.workflow, sample=self.grader.sample)
        return self.workflow


class ExecutionBackend(ABC):
    """Runs rollouts, one `execute` each. All methods are called on one event loop."""

    @property
    def max_concurrent(self) -> int | None:
        """How many executions run at a time; a scheduler claims this many per runner. None means without a bound."""
        return None

    async def check(self) -> None:  # noqa: B027  # most backends need nothing but this process
        """Find out whether this machine has what every rollout will need; called once, before the first one.

        Where it raises, the process says so and does not start: better than rollouts that all fail. It must not
        depend on what passes by itself, such as a model server that is away.

        Raises:
            MachineError: something is missing; the message says what to install or change.
        """

    @abstractmethod
    async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
        """Run one rollout to its end.

        Whatever user code does is in the outcome. An exception is a fault of the backend itself, and
        ``CancelledError`` means that this execution was cancelled from outside.
        """

    def has_capacity(self) -> bool:
        """Whether another rollout may be handed in now; False makes an admitting server answer 429."""
        return True

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """``{"status": RolloutStatus}`` of a rollout that runs here or ended lately; None for an unknown one."""
        return None

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, *, all: bool = False
    ) -> dict[str, str]:
        """Request the cancellation of rollouts by one selector; returns a `CancelDisposition` by id.

        A backend that cannot cancel returns ``{}``, and its caller cancels the task that awaits `execute`.
        """
        return {}

    def health(self) -> dict[str, Any]:
        """What ``GET /health`` answers for this backend."""
        return {"status": "ok"}

    async def shutdown(self) -> None:  # noqa: B027  # a backend that owns nothing has nothing to release
        """Release what the backend owns; called once, after the last execution ended."""
