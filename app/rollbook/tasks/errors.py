"""The errors of tasks.

TaskError               the task, or a hook of it, is not as it must be: the rollout fails and says so
RuntimeStoppedError     a runtime was used after it had been stopped: its owner's mistake, raised to the caller
JudgeError              a judge gave no score; the score stays null and the rollout is none the worse
ToolError               a tool cannot be called as asked; the program gets it as the tool's result
"""

from __future__ import annotations

from collections.abc import Iterable

from rollbook.backends.failures import failure_of
from rollbook.traces.trace import TraceError
from rollbook_client.statuses import RolloutErrorCategory

__all__ = ["JudgeError", "RuntimeStoppedError", "TaskError", "ToolError", "cause_of", "trace_error"]


class TaskError(Exception):
    """A mistake of the task: no prompt where one is needed, a hook that breaks a rule or raises.

    `hook` is the name of the hook, None where there is none to blame.
    """

    def __init__(self, message: str, *, hook: str | None = None) -> None:
        super().__init__(message)
        self.hook = hook


class RuntimeStoppedError(Exception):
    """A runtime was asked for something after it had been stopped; a borrowed one must outlive its borrowers."""


class JudgeError(Exception):
    """A judge could not be asked, or its answer holds no score."""

    def __init__(self, message: str, *, judge: str) -> None:
        super().__init__(message)
        self.judge = judge


class ToolError(Exception):
    """What a program asked of a tool does not fit: no such tool, or other arguments than it takes."""


def trace_error(stage: str, error: BaseException, *, who: str) -> TraceError:
    """The entry of a trace for an error that `who` raised during `stage`.

    A `TaskError` is the task's fault, so its category is `validation_error`; a judge that failed is an
    `http_error`; all others are categorised as a workflow's errors are.
    """
    failure = failure_of(error, who)
    category = failure.category
    if isinstance(error, TaskError):
        category = RolloutErrorCategory.VALIDATION_ERROR
    elif isinstance(error, JudgeError):
        category = RolloutErrorCategory.HTTP_ERROR
    return TraceError(stage=stage, type=type(error).__name__, message=failure.message, category=category.value)


def cause_of(errors: Iterable[TraceError]) -> TraceError | None:
    """The first of a trace's errors that fails a rollout; a judge's does not."""
    return next((error for error in errors if error.type != JudgeError.__name__), None)
