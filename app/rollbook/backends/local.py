"""LocalBackend: workflows and graders run in this process, on this event loop."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from rollbook.backends.artifacts import artifacts_root, make_folder
from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest, ExecutionResult
from rollbook.backends.failures import deadline_failure
from rollbook.backends.limiter import Slots
from rollbook.backends.recording import CallRecording, Calls
from rollbook.backends.references import resolve
from rollbook.backends.stage import StageError, run_stage
from rollbook.sdk.config import AgentWorkflowConfig, GraderConfig
from rollbook.sdk.context import AgentWorkflowContext, GraderContext, RolloutContext, get_rollout_context
from rollbook.sdk.grader import Grader
from rollbook.sdk.output import coerce_output
from rollbook.sdk.sample import RolloutSample, coerce_sample
from rollbook.sdk.span import StageSpan, timed
from rollbook.sdk.workflow import AgentWorkflow
from rollbook_client.statuses import CancelDisposition, RolloutStatus

logger = logging.getLogger(__name__)

DEFAULT_MAX_CONCURRENT = 4
"""For a backend without a workflow config."""
_REMEMBERED_ENDS = 1024
"""How many ended rollouts `rollout_status` still knows."""


class LocalBackend(ExecutionBackend):
    """Runs a workflow, and a grader if there is one, in process.

    All four arguments also come as ``"module:Name"`` strings. The workflow's config sets how many run at a time: a
    config without a bound is unbounded, no config is 4. `record_model_calls` puts an endpoint on this machine in front
    of the rollouts' model and records each call in the ledger; it needs the extra ``server``. None, the default, leaves
    that to whoever runs the backend: `rollbook serve` and `rollbook scheduler` record unless told not to, others do
    not. Raises ``TypeError`` for classes and configs of another kind and ``ImportError`` or ``ValueError`` for a string
    that names nothing.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        record_model_calls: bool | None = None,
    ) -> None:
        self.workflow_cls: type[AgentWorkflow[Any]] = _concrete(workflow, AgentWorkflow, what="workflow")
        self.grader_cls: type[Grader] | None = None if grader is None else _concrete(grader, Grader, what="grader")
        self.workflow_config: AgentWorkflowConfig | None = _instance(
            resolve(workflow_config), AgentWorkflowConfig, "workflow_config"
        )
        self.grader_config: GraderConfig | None = _instance(resolve(grader_config), GraderConfig, "grader_config")
        config = self.workflow_config
        self._slots = Slots(DEFAULT_MAX_CONCURRENT if config is None else config.concurrency.max_concurrent)
        self._recording = CallRecording(record_model_calls)
        self._live: dict[_Run, None] = {}
        self._ended: OrderedDict[str, RolloutStatus] = OrderedDict()
        self._artifacts_root = artifacts_root()

    @property
    def max_concurrent(self) -> int | None:
        """How many executions run at a time; may be set, and then holds for executions that start later."""
        return self._slots.limit

    @max_concurrent.setter
    def max_concurrent(self, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"max_concurrent must be at least 1, or None for no bound; got {limit}")
        self._slots.limit = limit

    @property
    def record_model_calls(self) -> bool | None:
        """Whether model calls are recorded; may be set, and then holds for executions that start later."""
        return self._recording.wanted

    @record_model_calls.setter
    def record_model_calls(self, wanted: bool | None) -> None:
        self._recording.wanted = wanted

    async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
        """Run one rollout; its ambient `RolloutContext` is used if there is one, also for the spans of a cancelled run.

        Raises ``CancelledError`` if this execution was cancelled from outside, and nothing that user code raises.
        """
        ctx = get_rollout_context() or RolloutContext(rollout_id=request.id)
        spans: list[StageSpan] = []
        ctx.spans = spans
        run = _Run(request.id)
        self._live[run] = None
        ended = RolloutStatus.FAILURE
        try:
            outcome = await self._in_slot(request, run=run, ctx=ctx, spans=spans)
            ended = outcome.result.status
        except asyncio.CancelledError:
            ended = RolloutStatus.CANCELLED
            raise
        finally:
            del self._live[run]
            self._remember(request.id, ended)
        return outcome

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """``{"status": …}`` of a rollout that is here or among the last 1,024 that ended; None for any other."""
        for run in reversed(self._live):
            if run.rollout_id == rollout_id:
                return {"status": run.phase}
        ended = self._ended.get(rollout_id)
        return None if ended is None else {"status": ended}

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, *, all: bool = False
    ) -> dict[str, str]:
        """Cancel the executions that exactly one selector matches; their `execute` calls raise ``CancelledError``.

        Returns each id's disposition; repeating it is harmless and answers the same until the execution has ended.
        `prefix` and `all` list only rollouts that are here. Raises ``ValueError`` for none or several selectors.
        """
        if (ids is not None) + (prefix is not None) + all != 1:
            raise ValueError("pass exactly one selector: ids, prefix, or all")
        found: dict[str, str] = {} if ids is None else dict.fromkeys(ids, CancelDisposition.NOT_FOUND.value)
        for run in self._live:
            if all or (run.rollout_id in found if prefix is None else run.rollout_id.startswith(prefix)):
                found[run.rollout_id] = run.cancel()
        return found

    def health(self) -> dict[str, Any]:
        """``status`` and ``concurrency``: the limit, how many wait and how many run."""
        return {"status": "ok", "concurrency": self._slots.snapshot()}

    async def shutdown(self) -> None:
        """End the endpoint in front of the model, if there is one."""
        await self._recording.close()

    async def _in_slot(
        self, request: ExecutionRequest, *, run: _Run, ctx: RolloutContext, spans: list[StageSpan]
    ) -> ExecutionOutcome:
        try:
            queued_sec = request.queued_sec + await self._take_slot(request, spans)
        except StageError as error:
            return ExecutionOutcome(workflow=_failed(error, request, calls=Calls(ctx)), spans=tuple(spans))
        try:
            run.phase = RolloutStatus.RUNNING
            ctx.enter_phase(RolloutStatus.RUNNING)
            async with self._recording.of(ctx) as calls:
                with calls.ctx:
                    workflow = await self._run_workflow(request, calls=calls, queued_sec=queued_sec, spans=spans)
                    grader = None
                    if request.grade and workflow.status is RolloutStatus.SUCCESS:
                        grader = await self._grade(request, workflow.sample, run=run, calls=calls, spans=spans)
        finally:
            self._slots.give_back()
        return ExecutionOutcome(workflow=workflow, grader=grader, spans=tuple(spans))

    async def _take_slot(self, request: ExecutionRequest, spans: list[StageSpan]) -> float:
        """Take a slot and return the seconds waited for it; raises `StageError` once the agent's deadline passed."""
        if self._slots.take():
            return 0.0
        limit_sec = request.agent_timeout_sec
        started = time.monotonic()
        with timed("queue", spans):
            try:
                async with asyncio.timeout(None if limit_sec is None else limit_sec - request.queued_sec):
                    await self._slots.wait()
            except TimeoutError:  # nothing but our own timer raises here; it is set only with a limit
                queued_sec = request.queued_sec + time.monotonic() - started
                raise StageError(deadline_failure("workflow", limit_sec or 0.0, queued_sec=queued_sec)) from None
        return time.monotonic() - started

    async def _run_workflow(
        self, request: ExecutionRequest, *, calls: Calls, queued_sec: float, spans: list[StageSpan]
    ) -> ExecutionResult:
        async def step() -> RolloutSample | None:
            config = copy.deepcopy(self.workflow_config)
            workflow = self.workflow_cls(config)
            returned = workflow.run(
                AgentWorkflowContext(
                    request.prompt,
                    config,
                    metadata=request.metadata,
                    artifacts_dir=partial(make_folder, self._artifacts_root, request.id),
                )
            )
            output = coerce_output(await _awaitable(returned, "run"))
            if output is None:
                return coerce_sample(await calls.ctx.get_sample())
            if output.messages is None:
                return None
            return RolloutSample(messages=output.messages, label=request.label, metrics=output.metrics)

        try:
            with timed("agent", spans):
                sample = await run_stage(
                    step, "workflow", limit_sec=request.agent_timeout_sec, queued_sec=queued_sec, name="agent"
                )
        except StageError as error:
            return _failed(error, request, calls=calls)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)

    async def _grade(
        self,
        request: ExecutionRequest,
        sample: RolloutSample | None,
        *,
        run: _Run,
        calls: Calls,
        spans: list[StageSpan],
    ) -> ExecutionResult:
        grader_cls = self.grader_cls
        if grader_cls is None:
            return _ungraded("this backend has no grader; give it one, or admit the rollout with grade=false")
        if request.label is None and request.metadata is None:
            return _ungraded(
                "there is nothing to grade against: the request has neither label nor metadata; "
                "send one of them, or admit the rollout with grade=false"
            )

        async def step() -> RolloutSample:
            grader_ctx = GraderContext(
                request.label,
                sample,
                metadata=request.metadata,
                artifacts_dir=partial(make_folder, self._artifacts_root, request.id),
            )
            grader = grader_cls(self.grader_config)
            await _awaitable(grader.grade(grader_ctx), "grade")
            return _rewarded(coerce_sample(grader_ctx.sample))

        run.phase = RolloutStatus.GRADING
        calls.ctx.enter_phase(RolloutStatus.GRADING)
        calls.begin_grading()
        try:
            with timed("grading", spans):
                graded = await run_stage(step, "grader", limit_sec=request.grader_timeout_sec, name="grading")
        except StageError as error:
            return _failed(error, request, calls=calls, sample=sample)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=graded)

    def _remember(self, rollout_id: str, ended: RolloutStatus) -> None:
        self._ended[rollout_id] = ended
        self._ended.move_to_end(rollout_id)
        if len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)


class _Run:
    """One execution that has not ended, for status and cancellation."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.phase = RolloutStatus.QUEUED
        self._task = asyncio.current_task()
        self._disposition: str | None = None

    def cancel(self) -> str:
        """Cancel the task once, however often this is called; returns the disposition of the first time."""
        if self._disposition is None:
            queued = self.phase is RolloutStatus.QUEUED
            found = CancelDisposition.CANCELLED_QUEUED if queued else CancelDisposition.CANCELLED_RUNNING
            self._disposition = found.value
            if self._task is not None:
                self._task.cancel()
        return self._disposition


def _failed(
    error: StageError, request: ExecutionRequest, *, calls: Calls, sample: RolloutSample | None = None
) -> ExecutionResult:
    """The result of a failed stage, logged with user code's traceback; neither shows the rollout's secrets."""
    failure = calls.explained(error.failure)
    message = calls.scrubbed(failure.message)
    if error.__cause__ is None:
        logger.warning("rollout %s failed: %s", request.id, message)
    else:
        trace = calls.scrubbed("".join(traceback.format_exception(error.__cause__)))
        logger.error("rollout %s failed: %s\n%s", request.id, message, trace)
    return ExecutionResult(
        status=RolloutStatus.FAILURE, sample=sample, err_message=message, err_category=failure.category
    )


def _ungraded(why: str) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.FAILURE, err_message=f"the rollout could not be graded: {why}")


def _rewarded(sample: RolloutSample | None) -> RolloutSample:
    if sample is None:
        raise ValueError(
            "there is no sample to grade: have run() return messages or register a sample source before it returns"
        )
    if sample.reward is None and not sample.remove_sample:
        raise ValueError(
            "the grader left the sample without a reward; call ctx.set_reward(number), "
            "or set ctx.sample.remove_sample = True"
        )
    return sample


def _awaitable(returned: Any, method: str) -> Any:
    if not inspect.isawaitable(returned):
        raise TypeError(f"{method}() returned {type(returned).__name__}, not a coroutine; define it as `async def`")
    return returned


def _concrete(reference: Any, base: type, *, what: str) -> type[Any]:
    cls = resolve(reference)
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise TypeError(f"{what} must be a subclass of {base.__name__}, or 'module:Name' of one; got {cls!r}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise TypeError(f"{what} {cls.__name__} is abstract; implement {missing}")
    return cls


def _instance[T](value: Any, kind: type[T], what: str) -> T | None:
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{what} must be an instance of {kind.__name__}, or 'module:name' of one; got {value!r}")
