"""Scoring a stored trace once more, with the task as it is now and without any runtime or model of the rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rollbook.backends.stage import StageError, run_stage
from rollbook.tasks.arguments import Given
from rollbook.tasks.scoring import STAGE, Scoring, odd_scores_out, seed_scores
from rollbook.tasks.task import Task
from rollbook.traces.calls import ModelCall
from rollbook.traces.cutting import CUT
from rollbook.traces.trace import Trace, TraceError

__all__ = ["Rescored", "need_a_runtime", "rescored", "why_unscored"]


class Rescored(Struct, frozen=True, kw_only=True):
    """What a later scoring brought.

    A null score did not come back, either because the task has nothing to say there, or because something went wrong:
    `lost` are the methods and judges to which that happened, and `errors` say what. `reward` is the weighted sum of
    the rewards that are not null, None where there is none. `usage` are the calls of judges.
    """

    rewards: Mapping[str, float | None]
    metrics: Mapping[str, float | None]
    weights: Mapping[str, float]
    reward: float | None
    lost: tuple[str, ...]
    errors: tuple[TraceError, ...]
    usage: tuple[ModelCall, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing went wrong; what is null then is meant so."""
        return not self.lost and not self.errors


def need_a_runtime(task: Task[Any]) -> list[str]:
    """The metrics and rewards of `task` that cannot do without a runtime, so that no stored trace is scored by them."""
    hooks = (*task.hooks.metrics, *task.hooks.rewards)
    return [hook.who for hook in hooks if any(p.source == "runtime" and not p.optional for p in hook.parameters)]


def why_unscored(trace: Trace) -> str | None:
    """Why a trace is none that is scored; None where it is.

    As when it was made, a run that failed or was cut short is not scored. One whose scoring failed is: that is what
    may come out otherwise now.
    """
    if CUT in trace.info:  # it lacks what it was scored by
        return f"its trace was saved {trace.info[CUT]}"
    if trace.ok:
        return None
    cause = next((error for error in trace.errors if error.stage != STAGE), None)
    if cause is not None:
        return f"its run failed in {cause.stage}: {cause.message}"
    if not any(span.stage == STAGE for span in trace.spans):
        return "its run was ended before it was scored"
    return None


async def rescored(trace: Trace, task: Task[Any]) -> Rescored:
    """The scores of `task` for a stored trace, which is changed; scores of a harness are not made again.

    Methods and judges have the task's scoring timeout together; what they brought by then stays. Raises
    ``ValueError`` where the trace's data does not fit the task, and `TaskError` where the task uses a name twice.
    """
    data = task.data_type.from_json(trace.task)
    # Methods see the trace as it was when it was to be scored first.
    trace.errors = [error for error in trace.errors if error.stage != STAGE]
    before, calls_before = len(trace.errors), len(trace.extra_usage)
    seed_scores(trace, task)
    scoring: Scoring | None = None

    async def step() -> list[TraceError]:
        nonlocal scoring
        own = task.for_rollout()
        # Many are scored after another, and what the first raised comes again: the errors name the line.
        scoring = Scoring(Given(owner=own, data=data, trace=trace, state=own.state), own, logged=False)
        await scoring.run()
        return scoring.errors

    try:
        errors = await run_stage(step, "scoring", limit_sec=data.timeouts.scoring)
    except StageError as error:
        cause = "TimeoutError" if error.__cause__ is None else type(error.__cause__).__name__
        errors = [
            TraceError(stage=STAGE, type=cause, message=error.failure.message, category=error.failure.category.value)
        ]
    errors = [*errors, *odd_scores_out(trace)]
    return Rescored(
        rewards=trace.rewards,
        metrics=trace.metrics,
        weights=trace.weights,
        reward=trace.reward,
        lost=() if scoring is None else tuple(scoring.lost),
        errors=(*trace.errors[before:], *errors),
        usage=tuple(trace.extra_usage[calls_before:]),
    )
