"""The wire messages of the polling protocol: what each request and answer carries, with its defaults and limits.

Decoding validates: a value outside its documented range is a `msgspec.ValidationError`, which is a `ValueError`;
constructing a message checks the same ranges. Unknown fields are ignored, so either side may be newer.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from rollbook_client.identifiers import validate_rollout_id
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

POLLING_LEASE_HEADER = "X-Osmosis-Rollout-Lease"
IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"

type MessageDict = dict[str, Any]


class RolloutInitRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /rollout`.

    Timeouts are in seconds; omitted means unbounded, zero or negative means already expired.
    """

    initial_messages: list[MessageDict]
    chat_completions_url: str
    rollout_id: str
    label: str | None = None
    metadata: dict[str, Any] | None = None
    llm_api_key: str | None = None
    grade: bool = True
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    extra_fields: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        validate_rollout_id(self.rollout_id)
        if self.llm_api_key == "":
            raise ValueError("llm_api_key is empty; omit it, or pass the endpoint's key")
        _require_finite(self.agent_timeout_sec, name="agent_timeout_sec")
        _require_finite(self.grader_timeout_sec, name="grader_timeout_sec")

    def __repr__(self) -> str:
        # The key, and often the URL, are secrets: a logged request must not show them.
        return f"RolloutInitRequest(rollout_id={self.rollout_id!r}, …)"


class RolloutInitResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the 202 that admits a rollout. The lease token is a capability: whoever has it reads the result."""

    rollout_id: str
    status: RolloutStatus
    polling_lease_token: Annotated[str, msgspec.Meta(min_length=1)]
    result_wait_timeout_sec: float
    polling_lease_timeout_sec: float

    def __post_init__(self) -> None:
        require_lease_timing(
            result_wait_timeout_sec=self.result_wait_timeout_sec,
            polling_lease_timeout_sec=self.polling_lease_timeout_sec,
        )

    def __repr__(self) -> str:
        return f"RolloutInitResponse(rollout_id={self.rollout_id!r}, status={self.status.value!r}, …)"


class RolloutSample(msgspec.Struct, kw_only=True):
    """The sample as a poll answers it. `reward` is None unless the rollout succeeded and the sample is kept."""

    messages: list[MessageDict] = []
    label: str | None = None
    reward: float | None = None
    remove_sample: bool = False
    metrics: dict[str, Any] = {}
    extra_fields: dict[str, Any] = {}


class RolloutResultResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /rollout/{id}/result`: the current status, and from a terminal status on the outcome."""

    rollout_id: str
    status: RolloutStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None


class RolloutStatusResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /rollout/{id}/status`, which needs no lease and renews none.

    `phase` is what the current attempt does (`running` or `grading`), None while none runs; `attempt` counts from 1
    and is 0 before the first.
    """

    rollout_id: str
    status: RolloutStatus
    phase: RolloutStatus | None
    attempt: Annotated[int, msgspec.Meta(ge=0)]
    max_attempts: int | None = None
    queue: str | None = None


class CancelRolloutsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /rollout/cancel`: exactly one selector of `ids`, `prefix` and `all`."""

    ids: list[str] | None = None
    prefix: str | None = None
    all: bool = False


class CancelRolloutsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the request found for each id: a `CancelDisposition` value, or one of a newer server's."""

    dispositions: dict[str, str]


class RolloutLifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """The `lifecycle` object of `GET /health`, independent of the backend."""

    accepting_rollouts: bool
    active_rollouts: Annotated[int, msgspec.Meta(ge=0)]


def require_lease_timing(*, result_wait_timeout_sec: float, polling_lease_timeout_sec: float) -> None:
    """Refuse a long-poll wait that is not positive and finite, and a lease that is not finite and longer than it.

    Raises:
        ValueError: names the value that is out of range.
    """
    if not math.isfinite(result_wait_timeout_sec) or result_wait_timeout_sec <= 0:
        raise ValueError(f"result_wait_timeout_sec is {result_wait_timeout_sec}; it must be positive and finite")
    if not math.isfinite(polling_lease_timeout_sec) or polling_lease_timeout_sec <= result_wait_timeout_sec:
        raise ValueError(
            f"polling_lease_timeout_sec is {polling_lease_timeout_sec}; it must be finite and exceed "
            f"result_wait_timeout_sec ({result_wait_timeout_sec})"
        )


def _require_finite(value_sec: float | None, *, name: str) -> None:
    if value_sec is not None and not math.isfinite(value_sec):
        raise ValueError(f"{name} is {value_sec}; pass a finite number of seconds, or omit it to run unbounded")
