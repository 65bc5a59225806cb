"""Scoring a rollout: metrics, then rewards, then judges, with a null wherever a score did not come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollbook.backends.failures import failure_of
from rollbook.sdk.values import finite_number, shown
from rollbook.tasks.arguments import Given, Missing
from rollbook.tasks.errors import TaskError, trace_error
from rollbook.tasks.hooks import Hook, Hooked
from rollbook.tasks.judge import Judge
from rollbook.tasks.patience import patiently
from rollbook.tasks.running import call_hook, raised_by
from rollbook.tasks.task import Task, check_names
from rollbook.traces.mending import mend_scores, odd_scores
from rollbook.traces.trace import Trace, TraceError

__all__ = ["Scoring", "check_scores", "odd_scores_out", "score", "seed_scores"]

log = logging.getLogger(__name__)

STAGE = "scoring"

type Scores = dict[str, float | None]


def check_scores(task: Task[Any], harness: object = None) -> None:
    """Raise `TaskError` where the task and its harness, or the task and its judges, use a name twice."""
    try:
        check_names(type(task).__name__, task)
    except TypeError as error:
        raise TaskError(str(error)) from error
    own = {hook.name for hook in task.hooks.metrics}
    if twice := sorted(own & {hook.name for hook in _metrics_of(harness)}):
        raise TaskError(
            f"the task and its harness both have the metric {twice[0]!r}; "
            f"metrics are kept by name, so give the task's another"
        )


def seed_scores(trace: Trace, task: Task[Any], harness: object = None) -> None:
    """Put every expected name into the trace's scores as null, and forget what was there: nothing is scored yet.

    Raises `TaskError` as `check_scores` does.
    """
    check_scores(task, harness)
    own = [hook.name for hook in task.hooks.metrics]
    theirs = [hook.name for hook in _metrics_of(harness)]
    trace.metrics = dict.fromkeys([*own, *theirs])
    trace.rewards = dict.fromkeys([*(hook.name for hook in task.hooks.rewards), *(one.name for one in task.judges)])
    trace.weights = {hook.name: hook.weight for hook in task.hooks.rewards} | {
        one.name: one.weight for one in task.judges
    }


async def score(given: Given, task: Task[Any], harness: object = None) -> list[TraceError]:
    """Score ``given.trace`` by the task, and side by side with that by the harness's metrics.

    The scores, their weights and the judges' usage are in the trace, each as soon as it is there, so a scoring that
    is cut short keeps what it has. A method that raises, or returns what is no score, loses only its own: it stays
    null, and the error is returned. A judge that fails leaves null too; its error goes into the trace, but is not
    returned, for nothing of the rollout has failed. Needs no runtime, unless a method asks for one.

    Raises `TaskError` where a name is used twice, and ``CancelledError`` after the errors so far went into the trace.
    """
    scoring = Scoring(given, task, harness)
    await scoring.run()
    return scoring.errors


def odd_scores_out(trace: Trace) -> list[TraceError]:
    """Make scores null that are no numbers, weights away with them; an error for each, named as it was.

    What methods return has been looked at; this is about what a task's code puts into the trace by itself.
    """
    odd = odd_scores(trace)
    mend_scores(trace)
    return [
        trace_error(STAGE, TaskError(f"{where} of the trace is {what}; put a finite number there"), who="the task")
        for where, what in odd.items()
    ]


class Scoring:
    """One scoring as `score` describes it, which also tells who brought no score.

    `errors` are what `score` returns. `lost` are the methods and judges that raised, gave what is no score, or have
    not come back, each with why, None for the last; one that says by null that it has nothing to say is none of them.
    The log has the tracebacks of what raised, unless it is not `logged`. Raises as `score` does.
    """

    def __init__(self, given: Given, task: Task[Any], harness: object = None, *, logged: bool = True) -> None:
        seed_scores(given.trace, task, harness)
        self.errors: list[TraceError] = []
        hooks = (*task.hooks.metrics, *_metrics_of(harness), *task.hooks.rewards)
        self.lost: dict[str, str | None] = dict.fromkeys([hook.who for hook in hooks] + [*map(_who, task.judges)])
        self._task = task
        self._harness = harness
        self._logged = logged
        self._trace = given.trace
        self._given = _owned(given, task)

    async def run(self) -> None:
        """Score; once."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._of_task())
                group.create_task(self._of_harness())
        except BaseException:
            self._trace.errors.extend(self.errors)
            raise

    async def _of_task(self) -> None:
        hooks = self._task.hooks
        await _side_by_side([partial(self._method, hook, self._given) for hook in hooks.metrics])
        await _side_by_side([partial(self._method, hook, self._given) for hook in hooks.rewards])
        await _side_by_side([partial(self._judge, judge) for judge in self._task.judges])

    async def _of_harness(self) -> None:
        given = _owned(self._given, self._harness)
        await _side_by_side([partial(self._method, hook, given) for hook in _metrics_of(self._harness)])

    async def _method(self, hook: Hook, given: Given) -> None:
        cancelled_before = _cancellations()
        try:
            value = await call_hook(hook, given)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _cancellations() > cancelled_before:
                raise
            self._raised(hook, error, given)
        else:
            self._returned(hook, value)
            self._back(hook.who)

    def _raised(self, hook: Hook, error: BaseException, given: Given) -> None:
        if isinstance(error, (TaskError, Missing)):
            self._fault(hook, TaskError(f"{hook.who}: {error}"))
            return
        if self._logged:
            log.error("rollout %s: %s failed", given.trace.rollout_id, hook.who, exc_info=error)
        text, category = raised_by(hook, error, given), failure_of(error, hook.who).category
        self._lose(hook, TraceError(stage=STAGE, type=type(error).__name__, message=text, category=category.value))

    def _returned(self, hook: Hook, value: Any) -> None:
        if not isinstance(value, Mapping):
            self._put(hook, {hook.name: value})
            return
        into = self._scores(hook)
        own: dict[str, Any] = {}
        for name, item in value.items():
            if not isinstance(name, str) or not name:
                self._fault(hook, TaskError(f"{hook.who} returned the name {shown(name)}; name scores by text"))
            elif name != hook.name and name in into:
                self._fault(hook, TaskError(f"{hook.who} returned {name!r}, which another score is called already"))
            else:
                own[name] = item
        if own or not value:
            self._put(hook, own)

    def _put(self, hook: Hook, values: Mapping[str, Any]) -> None:
        """Put scores in the place of the method's own name."""
        made: Scores = {}
        for name, value in values.items():
            made[name] = None
            if value is not None:
                try:
                    made[name] = finite_number(value, f"{hook.who}: {name}")
                except ValueError as error:
                    self._fault(hook, TaskError(str(error)))
        into = self._scores(hook)
        before = dict(into)
        into.clear()
        for name, old in before.items():
            into.update(made if name == hook.name else {name: old})
        if hook.kind == "reward":
            self._trace.weights.pop(hook.name, None)
            self._trace.weights.update(dict.fromkeys(made, hook.weight))

    async def _judge(self, judge: Judge) -> None:
        cancelled_before = _cancellations()
        try:
            self._trace.rewards[judge.name] = await patiently(
                judge.score(self._given.data, self._trace), f"the judge {judge.name}"
            )
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _cancellations() > cancelled_before:
                raise
            failed = trace_error(STAGE, error, who=_who(judge))
            self.lost[_who(judge)] = failed.message
            self._trace.errors.append(failed)
        else:
            self._back(_who(judge))

    def _scores(self, hook: Hook) -> Scores:
        return self._trace.rewards if hook.kind == "reward" else self._trace.metrics

    def _fault(self, hook: Hook, error: TaskError) -> None:
        self._lose(hook, trace_error(STAGE, error, who=hook.who))

    def _lose(self, hook: Hook, error: TraceError) -> None:
        self.lost[hook.who] = error.message
        self.errors.append(error)

    def _back(self, who: str) -> None:
        if self.lost[who] is None:
            del self.lost[who]


def _who(judge: Judge) -> str:
    return f"the judge {judge.name}"


async def _side_by_side(work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(_run(one))


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _owned(given: Given, owner: object) -> Given:
    return Given(owner=owner, data=given.data, trace=given.trace, runtime=given.runtime, state=given.state)


def _metrics_of(harness: object) -> tuple[Hook, ...]:
    return harness.hooks.metrics if isinstance(harness, Hooked) else ()
