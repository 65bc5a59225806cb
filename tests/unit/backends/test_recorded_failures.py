"""What a failed model call makes of a workflow's failure, by whose fault the call failed."""

from __future__ import annotations

import pytest

from rollbook.backends.failures import Failure
from rollbook.backends.recording import Calls
from rollbook.interception.messages import Request
from rollbook.sdk.context import RolloutContext
from rollbook.traces.calls import CallError, ModelCall
from rollbook_client.statuses import RolloutErrorCategory

RAISED = Failure("no answer", RolloutErrorCategory.AGENT_ERROR)


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("http", RolloutErrorCategory.HTTP_ERROR),
        ("broken_stream", RolloutErrorCategory.HTTP_ERROR),
        ("internal", RolloutErrorCategory.INTERNAL_ERROR),
        ("aborted", RolloutErrorCategory.AGENT_ERROR),
    ],
)
async def test_failure_after_a_failed_call_is_whoevers_the_call_was(kind: str, category: RolloutErrorCategory) -> None:
    calls = Calls(RolloutContext("http://127.0.0.1:9/v1", "key", rollout_id="r-1"))
    request = await calls.before(Request([]))
    calls.failed(request, ModelCall(number=0, model="m", started_at=1, ended_at=2, error=CallError(kind, "it broke")))
    explained = calls.explained(RAISED)
    assert explained.category is category
    assert ("it broke" in explained.message) is (kind != "aborted")


async def test_fault_of_ours_on_a_call_that_is_recorded_already_is_ours() -> None:
    calls = Calls(RolloutContext("http://127.0.0.1:9/v1", "key", rollout_id="r-1"))
    calls.broke("Rollbook itself failed")
    assert calls.explained(RAISED).category is RolloutErrorCategory.INTERNAL_ERROR
