"""The contract and the HTTP client of a Rollbook server. What is listed in `__all__` is public; modules are not.

Needs httpx and msgspec only.
"""

from __future__ import annotations

from rollbook_client.client import RolloutClient
from rollbook_client.errors import RolloutAdmissionTimeoutError, RolloutError, RolloutProtocolError
from rollbook_client.handle import RolloutHandle
from rollbook_client.identifiers import validate_rollout_id
from rollbook_client.messages import (
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

__all__ = [
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
