"""What errors become in a trace: stage, type, text and category."""

import pytest

from rollbook.tasks.errors import JudgeError, RuntimeStoppedError, TaskError, trace_error
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
