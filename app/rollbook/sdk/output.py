"""What `AgentWorkflow.run` may return, and how a return value becomes an `AgentWorkflowOutput`."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.sdk.values import MessageDict, finite_number, message_list, shown, string_keyed


class AgentWorkflowOutput(msgspec.Struct, kw_only=True):
    """One message history with optional measurements.

    `messages` None means that the run produced no sample; it does not fall back to a `SampleSource`. `metrics` are
    finite numbers by name; `info` stays with the workflow and reaches neither grader nor ledger. Checked at
    construction and again when it is returned; raises ``ValueError``, and ``TypeError`` for an unknown field.
    """

    messages: list[MessageDict] | None = None
    metrics: dict[str, float] = {}
    info: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check and convert all fields in place; raises ``ValueError``."""
        if self.messages is not None:
            self.messages = message_list(self.messages, "messages")
        if self.metrics or type(self.metrics) is not dict:
            metrics = string_keyed(self.metrics, "metrics")
            self.metrics = {name: finite_number(value, f"metrics[{name!r}]") for name, value in metrics.items()}
        if self.info or type(self.info) is not dict:
            self.info = string_keyed(self.info, "info")


def coerce_output(value: Any) -> AgentWorkflowOutput | None:
    """Turn a return value of ``run()`` into an output; None means "use the registered `SampleSource`".

    Raises ``TypeError`` for any other type and ``ValueError`` for bad contents.
    """
    if value is None:
        return None
    if isinstance(value, AgentWorkflowOutput):
        value.validate()  # it may have been changed since it was made
        return value
    if isinstance(value, list):
        return AgentWorkflowOutput(messages=value)
    raise TypeError(f"run() returned {shown(value)}; return an AgentWorkflowOutput, a list of messages, or None")
