"""The contract and the HTTP client of a Rollbook server. What is listed in `__all__` is public; modules are not.

Needs httpx and msgspec only. The client itself, and httpx with it, is imported when it is first asked for: servers,
schedulers and runners need the messages alone, and would start slower for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollbook_client.errors import RolloutAdmissionTimeoutError, RolloutError, RolloutProtocolError
from rollbook_client.identifiers import validate_rollout_id
from rollbook_client.messages import (
    IDEMPOTENCY_KEY_HEADER,
    POLLING_LEASE_HEADER,
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    MessageDict,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutLifecycle,
    RolloutResultResponse,
    RolloutSample,
    RolloutStatusResponse,
)
from rollbook_client.statuses import TERMINAL_STATUSES, CancelDisposition, RolloutErrorCategory, RolloutStatus

if TYPE_CHECKING:
    from rollbook_client.client import RolloutClient
    from rollbook_client.handle import RolloutHandle

__all__ = [
    "IDEMPOTENCY_KEY_HEADER",
    "POLLING_LEASE_HEADER",
    "TERMINAL_STATUSES",
    "CancelDisposition",
    "CancelRolloutsRequest",
    "CancelRolloutsResponse",
    "MessageDict",
    "RolloutAdmissionTimeoutError",
    "RolloutClient",
    "RolloutError",
    "RolloutErrorCategory",
    "RolloutHandle",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutLifecycle",
    "RolloutProtocolError",
    "RolloutResultResponse",
    "RolloutSample",
    "RolloutStatus",
    "RolloutStatusResponse",
    "validate_rollout_id",
]


def __getattr__(name: str) -> Any:
    if name == "RolloutClient":
        from rollbook_client.client import RolloutClient

        return RolloutClient
    if name == "RolloutHandle":
        from rollbook_client.handle import RolloutHandle

        return RolloutHandle
    raise AttributeError(f"module 'rollbook_client' has no attribute {name!r}")
