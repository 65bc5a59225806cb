"""Rollbook: agent rollouts on a ledger. The names that workflow authors, trainers and embedding servers use.

Names are imported when they are first asked for, so a base install pays for what it uses and nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest, ExecutionResult
    from rollbook.backends.local import LocalBackend
    from rollbook.sdk.config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig
    from rollbook.sdk.context import (
        AgentWorkflowContext,
        GraderContext,
        RolloutContext,
        SampleSource,
        get_rollout_context,
    )
    from rollbook.sdk.grader import Grader
    from rollbook.sdk.output import AgentWorkflowOutput
    from rollbook.sdk.sample import RolloutSample
    from rollbook.sdk.values import MessageDict
    from rollbook.sdk.workflow import AgentWorkflow
    from rollbook.server.embedded import create_rollout_server
    from rollbook_client import RolloutClient, RolloutHandle
    from rollbook_client.errors import RolloutAdmissionTimeoutError, RolloutProtocolError
    from rollbook_client.messages import RolloutInitRequest, RolloutInitResponse, RolloutResultResponse
    from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "ExecutionBackend",
    "ExecutionOutcome",
    "ExecutionRequest",
    "ExecutionResult",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "LocalBackend",
    "MessageDict",
    "RolloutAdmissionTimeoutError",
    "RolloutClient",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutHandle",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutProtocolError",
    "RolloutResultResponse",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "create_rollout_server",
    "get_rollout_context",
]

_HOMES = {
    "AgentWorkflow": "rollbook.sdk.workflow",
    "AgentWorkflowConfig": "rollbook.sdk.config",
    "AgentWorkflowContext": "rollbook.sdk.context",
    "AgentWorkflowOutput": "rollbook.sdk.output",
    "BaseConfig": "rollbook.sdk.config",
    "ConcurrencyConfig": "rollbook.sdk.config",
    "ExecutionBackend": "rollbook.backends.base",
    "ExecutionOutcome": "rollbook.backends.base",
    "ExecutionRequest": "rollbook.backends.base",
    "ExecutionResult": "rollbook.backends.base",
    "Grader": "rollbook.sdk.grader",
    "GraderConfig": "rollbook.sdk.config",
    "GraderContext": "rollbook.sdk.context",
    "LocalBackend": "rollbook.backends.local",
    "MessageDict": "rollbook.sdk.values",
    "RolloutAdmissionTimeoutError": "rollbook_client.errors",
    "RolloutClient": "rollbook_client",
    "RolloutContext": "rollbook.sdk.context",
    "RolloutErrorCategory": "rollbook_client.statuses",
    "RolloutHandle": "rollbook_client",
    "RolloutInitRequest": "rollbook_client.messages",
    "RolloutInitResponse": "rollbook_client.messages",
    "RolloutProtocolError": "rollbook_client.errors",
    "RolloutResultResponse": "rollbook_client.messages",
    "RolloutSample": "rollbook.sdk.sample",
    "RolloutStatus": "rollbook_client.statuses",
    "SampleSource": "rollbook.sdk.context",
    "create_rollout_server": "rollbook.server.embedded",
    "get_rollout_context": "rollbook.sdk.context",
}
_NEEDS_EXTRA = {"create_rollout_server": "server"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rollbook' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        extra = _NEEDS_EXTRA.get(name)
        if extra is None or (error.name or "").split(".")[0].startswith("rollbook"):
            raise  # a fault of this installation, which no extra would mend
        raise ImportError(
            f'rollbook.{name} needs {error.name}; install it with: pip install "rollbook[{extra}]"', name=error.name
        ) from error
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
