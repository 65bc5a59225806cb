"""What a trainer gets of a trace: the conversation that the rollout ended with."""

from __future__ import annotations

from rollbook.traces.matching import MessageDict
from rollbook.traces.trace import Trace
from rollbook_client.jsons import copied


def sample_messages(trace: Trace) -> list[MessageDict]:
    """The messages of the final branch, as copies; none where the rollout has no message."""
    branch = trace.final_branch
    return [] if branch is None else [copied(message) for message in branch.messages]
