"""Whose fault an end was: what a stage or a segment that went wrong puts into the trace, the true cause first."""

from __future__ import annotations

from rollbook.backends.failures import Failure
from rollbook.backends.stage import StageError
from rollbook.tasks.budget import CumulativeBudget
from rollbook.tasks.errors import trace_error
from rollbook.tasks.turns import Turns
from rollbook.traces.calls import CallError
from rollbook.traces.trace import TraceError
from rollbook_client.statuses import RolloutErrorCategory

__all__ = ["segment_errors", "stage_error"]


def stage_error(stage: str, error: StageError) -> TraceError:
    """The entry for a stage that failed: by what user code raised, or by a deadline of ours.

    No agent has a part in the boot: what is nobody's by its kind is the machine's there.
    """
    if _is_deadline(error):
        return _entry(stage, "TimeoutError", error.failure)
    kind, message, category = type(error.__cause__).__name__, error.failure.message, error.failure.category
    if isinstance(error.__cause__, LookupError):
        message = f"{kind}: {message}"  # its text is the key alone
    if stage == "boot" and category is RolloutErrorCategory.AGENT_ERROR:
        category = RolloutErrorCategory.INTERNAL_ERROR
    return _entry(stage, kind, Failure(message, category))


def segment_errors(error: StageError | None, *, turns: Turns, budget: CumulativeBudget) -> list[TraceError]:
    """What went wrong in a segment of the agent; nothing where it yielded, or was stopped.

    In this order: its time was over, a hook broke a rule, a model call failed and none after it went well (by a fault
    of ours, or the model server's; one that the program gave up has failed), the program failed. What a program
    raises after a stop is no failure; all else is. `error` is how the program ended, None where it ended well.
    """
    call_error = turns.call_error
    if budget.exceeded or (error is not None and _is_deadline(error)):
        text = f"the agent exceeded {budget.said}{_waiting_for(turns, call_error)}"
        return [_entry("agent", "TimeoutError", Failure(text, RolloutErrorCategory.TIMEOUT))]
    if turns.task_error is not None:
        return [trace_error("agent", turns.task_error, who="the task")]
    found = []
    if turns.fault is not None:
        found.append(_entry("agent", "ModelCallError", Failure(turns.fault, RolloutErrorCategory.INTERNAL_ERROR)))
    if call_error is not None:
        found.append(_entry("agent", "ModelCallError", _call_failure(call_error)))
    if error is not None and not turns.stopped:
        found.append(stage_error("agent", error))
    return found


def _waiting_for(turns: Turns, call_error: CallError | None) -> str:
    """What the program was doing when its time was over, as far as we know."""
    if turns.hooks_at_work:
        return f" while {' and '.join(sorted(set(turns.hooks_at_work)))} had not returned"
    if turns.in_flight:
        calls = "a model call" if turns.in_flight == 1 else f"{turns.in_flight} model calls"
        return f" while the model had not answered {calls}"
    return "" if call_error is None else f"; its last model call failed: {call_error.message}"


def _is_deadline(error: StageError) -> bool:
    return error.__cause__ is None


def _call_failure(error: CallError) -> Failure:
    if error.kind == "internal":
        return Failure(error.message, RolloutErrorCategory.INTERNAL_ERROR)
    category = RolloutErrorCategory.TIMEOUT if error.kind == "timeout" else RolloutErrorCategory.HTTP_ERROR
    return Failure(f"a model call failed: {error.message}", category)


def _entry(stage: str, kind: str, failure: Failure) -> TraceError:
    return TraceError(stage=stage, type=kind, message=failure.message, category=failure.category.value)
