"""Executions on one event loop: assignments in, reports out. The same in a child process and in an embedded server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from rollbook.backends.base import ExecutionBackend, ExecutionRequest
from rollbook.backends.failures import failure_of
from rollbook.backends.settle import SettledResult, settle
from rollbook.logformat import about
from rollbook.scheduler.records import PackedRecord, RecordError, packed
from rollbook.scheduler.wire import Assignment, Finished, Recorded, ToScheduler
from rollbook.scrub import SecretTexts, joined, scrub, secret_texts
from rollbook.sdk.context import RolloutContext
from rollbook.sdk.span import StageSpan as TimedStage
from rollbook_client.events import Event, ModelCalled, StageSpan
from rollbook_client.jsons import loads
from rollbook_client.statuses import RolloutStatus

from .logs import SecretRegistry, running_about
from .marks import whereabouts
from .records import Records
from .standing import Standing

log = logging.getLogger(__name__)

Spans = tuple[TimedStage, ...]


class AdmittedRequest(msgspec.Struct, frozen=True):
    """The admitted request's public part, as the ledger keeps it."""

    initial_messages: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    grade: bool = True
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None


class _Execution:
    __slots__ = ("cancelled", "secrets", "standing", "started", "task")

    def __init__(self, standing: Standing, secrets: SecretTexts) -> None:
        self.standing = standing
        self.secrets = secrets
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.started = False

    def interrupt(self) -> None:
        """Cancel the task. One that was not begun yet could not report then: it looks for itself when it begins."""
        self.cancelled = True
        if self.started and self.task is not None:
            self.task.cancel()


class Executor:
    """Runs assignments on the current event loop and reports to ``emit``.

    ``on_move`` is told at once where an execution stands, see `Standing`; reports wait for the loop.
    """

    def __init__(
        self,
        backend: ExecutionBackend,
        secrets: SecretRegistry,
        emit: Callable[[ToScheduler], None],
        *,
        on_move: Callable[[int, bytes], None] = lambda _key, _place: None,
    ) -> None:
        self._on_move = on_move
        self._backend = backend
        self._secrets = secrets
        self._emit = emit
        self._executions: dict[int, _Execution] = {}
        self._ids: dict[int, str] = {}
        self._records = Records(self._tell_records)

    def start(self, assignment: Assignment) -> None:
        """Begin an execution; its end is reported in any case."""
        standing = Standing(assignment.key, emit=self._emit, on_move=self._on_move)
        execution = _Execution(standing, secret_texts(assignment.chat_completions_url, assignment.llm_api_key))
        self._executions[assignment.key] = execution
        self._ids[assignment.key] = assignment.rollout_id
        token = whereabouts.set(standing.where)
        named = running_about.set(
            about(assignment.rollout_id, attempt=assignment.attempt, scheduler=assignment.scheduler)
        )
        try:
            execution.task = asyncio.get_running_loop().create_task(self._run(assignment, execution))
        finally:
            running_about.reset(named)
            whereabouts.reset(token)

    def cancel(self, key: int) -> None:
        """Request an execution's end: through its backend, which may have more to clean up than the task."""
        execution = self._executions.get(key)
        if execution is None or execution.cancelled:
            return
        execution.cancelled = True
        rollout_id = self._ids[key]
        if sum(other == rollout_id for other in self._ids.values()) > 1:
            execution.interrupt()  # by its id, a later attempt of the same rollout would be cancelled too
            return
        try:
            found = self._backend.cancel_rollouts(ids=[rollout_id]).get(rollout_id)
        except Exception:
            log.exception(
                "the backend failed to cancel rollout %s; its task is cancelled instead",
                rollout_id,
                extra=about(rollout_id),
            )
            found = None
        if found is None or found == "not_found":
            execution.interrupt()

    async def shut_down(self) -> None:
        """Cancel what still runs, wait for its clean-up, then release the backend."""
        executions = list(self._executions.values())
        tasks = [execution.task for execution in executions if execution.task is not None]
        for execution in executions:
            execution.interrupt()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._backend.shutdown()

    async def _run(self, assignment: Assignment, execution: _Execution) -> None:
        execution.started = True
        key = assignment.key
        self._secrets.add(key, execution.secrets)

        def clean(text: str) -> str:
            return scrub(text, execution.secrets)

        def hide(url: str, api_key: str | None) -> None:
            if key in self._executions:  # else by a task that outlived its execution: what it got opens nothing
                execution.secrets = joined(execution.secrets, secret_texts(url, api_key))
                self._secrets.add(key, execution.secrets)

        def take(records: list[PackedRecord]) -> None:
            if key in self._executions:  # else by a thread that outlived its execution
                self._records.add(key, records)

        ctx = RolloutContext(
            assignment.chat_completions_url,
            assignment.llm_api_key,
            rollout_id=assignment.rollout_id,
            on_phase=lambda phase: execution.standing.enter("grading" if phase is RolloutStatus.GRADING else "running"),
            on_record=_recorder(asyncio.get_running_loop(), assignment.rollout_id, clean, take),
            on_secrets=hide,
            on_stage=execution.standing.enter_stage,
        )
        try:
            settled, spans = await self._execute(assignment, execution, ctx)
        finally:
            self._secrets.remove(key)
            self._records.flush(key)
            execution.standing.end()
            del self._executions[key]
            del self._ids[key]
        for warning in settled.warnings:
            log.warning("rollout %s: %s", assignment.rollout_id, clean(warning))
        self._emit(
            Finished(
                key=key,
                status=_ended(settled.status),
                phases=tuple(execution.standing.phases),
                sample=settled.sample,
                reduced=settled.reduced,
                reward=settled.reward,
                metrics=settled.metrics,
                trajectory=settled.trajectory,
                trajectory_saved=settled.trajectory_saved,
                err_message=None if settled.err_message is None else clean(settled.err_message),
                err_category=None if settled.err_category is None else settled.err_category.value,
                spans=tuple(StageSpan(span.stage, span.started_at, span.ended_at) for span in spans),
            )
        )

    async def _execute(
        self, assignment: Assignment, execution: _Execution, ctx: RolloutContext
    ) -> tuple[SettledResult, Spans]:
        if execution.cancelled:
            return SettledResult(status=RolloutStatus.CANCELLED), ()
        try:
            admitted = msgspec.convert(loads(assignment.request), AdmittedRequest)
            request = ExecutionRequest(
                id=assignment.rollout_id,
                prompt=admitted.initial_messages,
                label=admitted.label,
                metadata=admitted.metadata,
                agent_timeout_sec=admitted.agent_timeout_sec,
                grader_timeout_sec=admitted.grader_timeout_sec,
                grade=admitted.grade,
                queued_sec=assignment.queued_sec,
            )
            execution.standing.begin(request)
            with ctx:
                outcome = await self._backend.execute(request)
            return settle(outcome), outcome.spans
        except asyncio.CancelledError:
            return SettledResult(status=RolloutStatus.CANCELLED), tuple(ctx.spans)
        except BaseException as error:
            # The backend itself failed; user code's errors are in the outcome.
            failure = failure_of(error, type(self._backend).__name__)
            log.exception("the backend failed on rollout %s", assignment.rollout_id)
            message = failure.message.encode("utf-8", "replace").decode()  # lone surrogates fit no pipe
            failed = SettledResult(status=RolloutStatus.FAILURE, err_message=message, err_category=failure.category)
            return failed, tuple(ctx.spans)

    def _tell_records(self, key: int, records: tuple[PackedRecord, ...]) -> None:
        self._executions[key].standing.tell()  # what is recorded belongs to a phase that was entered
        self._emit(Recorded(key, records))


def _recorder(
    loop: asyncio.AbstractEventLoop,
    rollout_id: str,
    clean: Callable[[str], str],
    take: Callable[[list[PackedRecord]], None],
) -> Callable[[tuple[Event, ...]], None]:
    """What a rollout records with, on any thread: without its secrets, handed to ``take`` on the loop."""

    def record(events: tuple[Event, ...]) -> None:
        records = []
        for event in events:
            try:
                records.append(packed(_scrubbed(event, clean)))
            except RecordError as error:
                # Whoever records has other things to do than to mind what it is worth.
                log.error("rollout %s: a record is lost: %s", rollout_id, clean(str(error)))
        try:
            on_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            take(records)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: its executions have ended
                loop.call_soon_threadsafe(take, records)

    return record


def _scrubbed(event: Event, clean: Callable[[str], str]) -> Event:
    """Error texts quote URLs and keys; everything else is the author's own."""
    if isinstance(event, ModelCalled) and isinstance(event.error, str):
        return msgspec.structs.replace(event, error=clean(event.error))
    return event


def _ended(status: RolloutStatus) -> Any:
    return status.value
