"""TaskBackend: rollout requests run as tasks, one `Rollout` each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest, ExecutionResult
from rollbook.backends.failures import deadline_failure, failure_of
from rollbook.backends.limiter import Slots
from rollbook.interception.endpoint import close_shared_endpoint
from rollbook.sdk.context import RolloutContext, get_rollout_context
from rollbook.sdk.sample import RolloutSample
from rollbook.sdk.span import Stage, StageSpan, timed
from rollbook.sdk.values import shown
from rollbook.tasks.checks import check_whole
from rollbook.tasks.data import Resources, TaskData
from rollbook.tasks.errors import cause_of
from rollbook.tasks.harnesses.base import Harness, checked_harness
from rollbook.tasks.limits import RolloutLimits, checked_limits
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime, made_by
from rollbook.tasks.task import Task, load_task
from rollbook.traces.sample import sample_messages
from rollbook.traces.trace import Trace
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus

__all__ = ["TaskBackend"]

DEFAULT_MAX_CONCURRENT = 4
_OVER_AT_ONCE_SEC = 1e-6


class TaskBackend(ExecutionBackend):
    """Runs each request as a task: `task` scored, `harness` playing the agent, in a runtime that `runtime` makes.

    ``task`` may be a ``"module:Name"`` string; ``runtime`` is called without arguments, or with the task's
    `resources` where it takes those, as the classes of runtimes do. The request's prompt, label and metadata become
    the `TaskData` by `data_of`, which a subclass may override; its time budgets shorten the task's. The sample is the
    trace's final branch with `trace.reward` and the metrics; the trace itself is in the ledger.
    """

    def __init__(
        self,
        *,
        task: Task[Any] | type[Task[Any]] | str,
        harness: Harness,
        runtime: Callable[..., Runtime],
        limits: RolloutLimits | None = None,
        max_concurrent: int | None = DEFAULT_MAX_CONCURRENT,
    ) -> None:
        self.task = load_task(task)
        if isinstance(runtime, Runtime) or not callable(runtime):
            raise TypeError(f"runtime makes one for each rollout: pass the class, or a function; got {shown(runtime)}")
        check_whole(max_concurrent, "max_concurrent", least=1)
        self.harness = checked_harness(harness)
        self.runtime = runtime
        self.limits = checked_limits(limits)
        self._slots = Slots(max_concurrent)

    @property
    def max_concurrent(self) -> int | None:
        """How many rollouts run at a time; None is unbounded."""
        return self._slots.limit

    def health(self) -> dict[str, Any]:
        """``status`` and ``concurrency``: the limit, how many wait and how many run."""
        return {"status": "ok", "concurrency": self._slots.snapshot()}

    async def check(self) -> None:
        """See `ExecutionBackend.check`: whether the judges' variables are set, and this machine can give the runtimes.

        A judge that is away is none of it: that may pass.
        """
        for judge in self.task.judges:
            judge.check()
        await made_by(self.runtime, resources=Resources()).try_out()

    async def shutdown(self) -> None:
        """Close the endpoint that the rollouts shared."""
        await close_shared_endpoint()

    def data_of(self, request: ExecutionRequest) -> TaskData:
        """The request as the task's data: a row of the metadata's ``task`` where there is one, else the prompt alone.

        The label and the whole metadata are in the extra fields `label` and `metadata`. Raises ``ValueError`` for
        what does not fit the task's data type.
        """
        metadata = request.metadata or {}
        row = metadata.get("task")
        if row is not None and not isinstance(row, Mapping):
            raise ValueError(f"metadata['task'] must be an object, the row of the task; got {shown(row)}")
        fields: dict[str, Any] = dict(row or {})
        fields.setdefault("id", request.id)
        if request.prompt:
            fields["prompt"] = request.prompt
            fields.pop("system_prompt", None)
        fields.setdefault("label", request.label)
        fields.setdefault("metadata", request.metadata)
        return self.task.data_type.from_json(fields)

    async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
        """Run one rollout; everything that goes wrong in it is in the outcome and in its trace."""
        ctx = get_rollout_context() or RolloutContext(rollout_id=request.id)
        spans: list[StageSpan] = []
        ctx.spans = spans
        queued_sec = request.queued_sec
        if not self._slots.take():
            began = time.monotonic()
            try:
                with timed("queue", spans):
                    async with asyncio.timeout(_left(request.agent_timeout_sec, queued_sec)):
                        await self._slots.wait()
            except TimeoutError:
                late = _late(request, queued_sec=queued_sec + time.monotonic() - began)
                return ExecutionOutcome(workflow=late, spans=tuple(spans))
            queued_sec += time.monotonic() - began
        try:
            return ExecutionOutcome(workflow=await self._run(request, ctx, queued_sec=queued_sec), spans=tuple(spans))
        finally:
            self._slots.give_back()

    async def _run(self, request: ExecutionRequest, ctx: RolloutContext, *, queued_sec: float) -> ExecutionResult:
        left_sec = _left(request.agent_timeout_sec, queued_sec)
        if left_sec is not None and left_sec <= 0:
            return _late(request, queued_sec=queued_sec)
        try:
            data, spent_queued_sec = _within(self.data_of(request), request, queued_sec=queued_sec)
            rollout = Rollout(
                self.task,
                data,
                self.harness,
                self.runtime,
                chat_completions_url=ctx.chat_completions_url,
                api_key=ctx.api_key,
                limits=self.limits,
                rollout_id=request.id,
                queued_sec=spent_queued_sec,
                tell=ctx.record,
            )
        except Exception as error:  # a task's own code makes its data and its state
            failure = failure_of(error, "the task")
            return ExecutionResult(
                status=RolloutStatus.FAILURE,
                err_message=f"the request does not fit the task: {failure.message}",
                err_category=failure.category,
            )
        ctx.enter_phase(RolloutStatus.RUNNING)
        ctx.on_stage = _as_in_a_result(ctx.on_stage)
        try:
            with ctx:
                if await rollout.open():
                    await rollout.step()
                if not rollout.failed and request.grade:
                    ctx.enter_phase(RolloutStatus.GRADING)
                trace = await rollout.close(scored=request.grade)
        finally:
            await rollout.abort()
        return _result(trace, request)


def _as_in_a_result(tell: Callable[[Stage | None], None] | None) -> Callable[[Stage | None], None]:
    """Tells with the message that a trace's error becomes; see `_result`."""

    def told(stage: Stage | None) -> None:
        if tell is not None:
            named = stage is not None and stage.name
            tell(msgspec.structs.replace(stage, late=f"{stage.name}: {stage.late}") if stage and named else stage)

    return told


def _late(request: ExecutionRequest, *, queued_sec: float) -> ExecutionResult:
    """The result of a rollout whose budget for the agent was over before there was anything to run."""
    failure = deadline_failure("the agent", request.agent_timeout_sec or 0.0, queued_sec=queued_sec)
    return ExecutionResult(status=RolloutStatus.FAILURE, err_message=failure.message, err_category=failure.category)


def _left(limit_sec: float | None, spent_sec: float) -> float | None:
    return None if limit_sec is None else limit_sec - spent_sec


def _within(data: TaskData, request: ExecutionRequest, *, queued_sec: float) -> tuple[TaskData, float]:
    """The task with the request's budgets where those are shorter, and how much of the agent's went by in the queue.

    The queue counts in the request's budget, and not in the task's own.
    """
    timeouts = data.timeouts
    grader_sec = request.grader_timeout_sec
    agent, left_sec = timeouts.agent, _left(request.agent_timeout_sec, queued_sec)
    if left_sec is not None and (agent is None or left_sec < agent):
        agent = request.agent_timeout_sec
    else:
        queued_sec = 0.0
    # On the wire nothing, or less, is a budget that is over already; in a task it is a mistake.
    scoring = _shorter(timeouts.scoring, None if grader_sec is None else max(grader_sec, _OVER_AT_ONCE_SEC))
    timeouts = msgspec.structs.replace(timeouts, agent=agent, scoring=scoring)
    return msgspec.structs.replace(data, timeouts=timeouts), queued_sec


def _shorter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _result(trace: Trace, request: ExecutionRequest) -> ExecutionResult:
    extra: dict[str, Any] = {
        "stop_condition": trace.stop_condition,
        "is_truncated": trace.is_truncated,
        # The reward is the sum of the others, and does not show by itself that it lacks some.
        "null_rewards": [name for name, value in trace.rewards.items() if value is None] or None,
    }
    sample = RolloutSample(
        messages=sample_messages(trace),
        label=request.label,
        reward=trace.reward if trace.ok else None,
        metrics=trace.metrics,
        extra_fields={name: value for name, value in extra.items() if value is not None},
    )
    if trace.ok:
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
    cause = cause_of(trace.errors) or trace.errors[0]
    scored_late = cause.stage in ("finalize", "scoring")
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample if scored_late else None,
        err_message=f"{cause.stage}: {cause.message}",
        err_category=RolloutErrorCategory(cause.category),
    )
