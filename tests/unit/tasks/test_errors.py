"""What errors become in a trace: stage, type, text and category."""

import pytest

from rollbook.tasks.errors import JudgeError, RuntimeStoppedError, TaskError, cause_of, trace_error
from rollbook.traces.trace import TraceError


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TaskError("bad", hook="h"), "validation_error"),
        (JudgeError("bad", judge="j"), "http_error"),
        (ValueError("bad"), "validation_error"),
        (TimeoutError("bad"), "timeout"),
        (RuntimeStoppedError("bad"), "agent_error"),
    ],
)
def test_error_is_categorised(error: Exception, category: str) -> None:
    assert trace_error("setup", error, who="the task") == TraceError("setup", type(error).__name__, "bad", category)


def test_error_without_text_says_who_raised_it() -> None:
    assert "the task raised LookupError" in trace_error("setup", LookupError(), who="the task").message


def test_cause_is_the_first_error_that_fails_a_rollout() -> None:
    judged = trace_error("scoring", JudgeError("bad", judge="j"), who="a judge")
    scored = trace_error("scoring", ValueError("bad"), who="a method")
    assert cause_of([judged, scored]) is scored
    assert cause_of([judged]) is None
