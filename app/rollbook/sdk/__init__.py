"""What workflow authors write against; `rollbook` exports these names."""

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
from rollbook.sdk.span import StageSpan
from rollbook.sdk.values import MessageDict
from rollbook.sdk.workflow import AgentWorkflow
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "MessageDict",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "StageSpan",
    "get_rollout_context",
]
