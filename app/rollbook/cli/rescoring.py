"""`rollbook rescore`: scoring rollouts that are over once more, from the traces they left."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import typer

from rollbook.ledger import scored
from rollbook.ledger.codec import CodecError
from rollbook.ledger.commands import LaterScore, Rescore
from rollbook.ledger.database import database_of
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.reader import Reader
from rollbook.ledger.refusals import CommandFailed, Refusal
from rollbook.ledger.schema import check
from rollbook.ledger.scored import Scorable
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url

from . import options
from .changing import user_name
from .failures import CommandError
from .rescored import JsonLines, Outcome, Table
from .restoring import Restoring

if TYPE_CHECKING:
    from rollbook.tasks.task import Task
    from rollbook.traces.trace import Trace

AT_ONCE = 8

_LIVE = "it is not over yet"
_ARCHIVED = "its events are archived"
_TRACELESS = "its last attempt left no trace"


def rescore(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", show_default=False)] = None,
    *,
    task: Annotated[
        str | None, typer.Option(help="What to score with: module:Task or file.py:Task.", metavar="PLACE:TASK")
    ] = None,
    restore: Annotated[
        int | None, typer.Option(min=0, help="Score nothing; put this scoring in front again, 0 for the run's own.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Every rollout whose id starts so.")] = None,
    queue: Annotated[str | None, typer.Option(help="Every rollout of this queue.")] = None,
    label_prefix: Annotated[str | None, typer.Option(help="Every rollout whose label starts so.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Score, print, and change nothing.")] = False,
    keep_partial: Annotated[
        bool, typer.Option("--keep-partial", help="Write scorings in which a method or a judge failed, too.")
    ] = False,
    at_once: Annotated[int, typer.Option(min=1, help="How many are scored at a time.")] = AT_ONCE,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Score rollouts that are over once more, from their traces: name ids, or options that all must fit.

    No model is asked but the task's judges. New scores stand in front of earlier ones, which are kept. Where a method
    or a judge failed, nothing is written and the exit code is 1, as it is for an id that is unknown and a choice that
    no rollout fits; what cannot be scored is skipped.
    """
    chosen = (prefix, queue, label_prefix)
    if bool(ids) == any(value is not None for value in chosen):
        raise typer.BadParameter("name ids, or --prefix, --queue or --label-prefix", param_hint="ID...")
    if (task is None) == (restore is None):
        raise typer.BadParameter("name a task to score with, or a scoring with --restore", param_hint="--task")
    selection = _Selection(tuple(ids or ()), *chosen)
    by = f"cli:{user_name()}"
    work: _Work
    if restore is not None:
        work = Restoring(restore, by=by)
    else:
        assert task is not None
        with _their_output_aside():
            work = _Scoring(_loaded(task, keep_partial=keep_partial), task, by=by, keep_partial=keep_partial)
    told = JsonLines() if json else Table(dry_run=dry_run)
    asyncio.run(_run(database_url, selection, _Rescoring(work, at_once=at_once), told, dry_run=dry_run))
    if told.complaint is not None:
        raise CommandError(told.complaint)


class _Selection(msgspec.Struct, frozen=True):
    ids: tuple[str, ...]
    prefix: str | None
    queue: str | None
    label_prefix: str | None

    def of(self, reader: Reader) -> AsyncIterator[Scorable | str]:
        if self.ids:
            return scored.named(reader, self.ids)
        return scored.selected(reader, prefix=self.prefix, queue=self.queue, label_prefix=self.label_prefix)

    def __str__(self) -> str:
        """What all that is asked for says, for one rollout."""
        parts = {
            "the queue": self.queue,
            "an id that starts with": self.prefix,
            "a label that starts with": self.label_prefix,
        }
        return " and ".join(f"{said} {text!r}" for said, text in parts.items() if text is not None)


def _loaded(reference: str, *, keep_partial: bool) -> Task[Any]:
    from rollbook.tasks.errors import TaskError
    from rollbook.tasks.rescoring import need_a_runtime
    from rollbook.tasks.scoring import check_scores
    from rollbook.tasks.task import load_task

    def refused(why: str) -> typer.BadParameter:
        return typer.BadParameter(f"{reference}: {why}", param_hint="--task")

    try:
        found = load_task(reference)
        check_scores(found)
    except (ImportError, ValueError, TypeError, TaskError) as error:
        raise refused(str(error)) from error
    except Exception as error:
        raise refused(f"loading it raised {type(error).__name__}: {error}") from error
    if not keep_partial and (needing := need_a_runtime(found)):
        raise refused(
            f"a stored trace is scored without a runtime, and {', '.join(needing)} cannot do without one; keep what is "
            "needed in trace.info when the rollout runs and annotate the parameter as `Runtime | None`, or score "
            "with the others alone by --keep-partial"
        )
    return found


@contextlib.contextmanager
def _their_output_aside() -> Iterator[None]:
    """What scoring code prints goes to standard error: standard output is ours."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


async def _run(
    database_url: str, selection: _Selection, command: _Rescoring, told: Table | JsonLines, *, dry_run: bool
) -> None:
    async with _opened(database_url, dry_run=dry_run) as (reader, ledger):
        outcomes = command.outcomes(selection.of(reader), reader, ledger)
        async with contextlib.aclosing(outcomes):
            while True:
                # Their code runs while we wait, and only then.
                with _their_output_aside():
                    outcome = await anext(outcomes, None)
                if outcome is None:
                    break
                told.outcome(outcome)
    if not told.total:
        raise CommandError(f"no rollout has {selection}; list what there is with `rollbook rollouts`")
    told.end()


@contextlib.asynccontextmanager
async def _opened(database_url: str, *, dry_run: bool) -> AsyncIterator[tuple[Reader, Ledger | None]]:
    if not dry_run:
        ledger = await Ledger.open(database_url, migrate=False, with_keys=False)
        try:
            yield ledger.reader, ledger
        finally:
            await ledger.close()
        return
    url = parse_url(database_url)
    await asyncio.to_thread(check, url)
    reader = Reader(database_of(url))
    try:
        yield reader, None
    finally:
        await reader.close()


class _Work(Protocol):
    async def one(self, found: Scorable, reader: Reader, ledger: Ledger | None) -> Outcome:
        """What became of one rollout that is over and not archived; without a ledger nothing is written."""


class _Rescoring:
    """Does its work for one rollout after the other, some at a time, in their order. Only those few are in memory."""

    def __init__(self, work: _Work, *, at_once: int) -> None:
        self._work = work
        self._at_once = at_once

    async def outcomes(
        self, rollouts: AsyncIterator[Scorable | str], reader: Reader, ledger: Ledger | None
    ) -> AsyncGenerator[Outcome]:
        """What became of each."""
        running: deque[asyncio.Task[Outcome]] = deque()
        try:
            async for found in rollouts:
                running.append(asyncio.create_task(self._one(found, reader, ledger)))
                if len(running) >= self._at_once:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, found: Scorable | str, reader: Reader, ledger: Ledger | None) -> Outcome:
        if isinstance(found, str):
            reason = "no rollout has this id; list what there is with `rollbook rollouts`"
            return Outcome(rollout_id=found, outcome="failed", reason=reason)
        if found.active or found.archived:
            return _skipped(found, _LIVE if found.active else _ARCHIVED)
        return await self._work.one(found, reader, ledger)


class _Scoring:
    """Scores with a task. A scoring in which something went wrong is written only with `keep_partial`."""

    def __init__(self, task: Task[Any], name: str, *, by: str, keep_partial: bool) -> None:
        self._task = task
        self._name = name
        self._by = by
        self._keep_partial = keep_partial

    async def one(self, found: Scorable, reader: Reader, ledger: Ledger | None) -> Outcome:
        from .tracereading import trace_at

        if found.trace is None:
            return _skipped(found, _TRACELESS)
        try:
            trace = await trace_at(reader, found.trace)
        except (CodecError, ValueError) as error:
            return _failed(found, str(error))
        if trace is None:
            return _skipped(found, _ARCHIVED)  # meanwhile
        return await self._scored(found, trace, ledger)

    async def _scored(self, found: Scorable, trace: Trace, ledger: Ledger | None) -> Outcome:
        from rollbook.tasks.rescoring import rescored, why_unscored

        why = why_unscored(trace)
        if why is not None:
            return _skipped(found, why)
        try:
            result = await rescored(trace, self._task)
        except ValueError as error:
            return _failed(found, f"its data does not fit the task: {error}")
        writes = result.whole or self._keep_partial
        outcome = Outcome(
            rollout_id=found.rollout_id,
            outcome="scored" if writes else "incomplete",
            was=found.reward,
            reward=result.reward,
            rewards=dict(result.rewards),
            metrics=dict(result.metrics),
            lost=list(result.lost),
            errors=[error.message for error in result.errors],
            judge_tokens=sum(call.usage.total_tokens for call in result.usage if call.usage is not None),
        )
        if ledger is None or not writes:
            return outcome
        metrics = (LaterScore(*item, None) for item in result.metrics.items())
        rewards = (LaterScore(*item, result.weights.get(item[0], 1.0)) for item in result.rewards.items())
        command = Rescore(
            rollout_id=found.rollout_id,
            task=self._name,
            by=self._by,
            scores=(*metrics, *rewards),
            reward=result.reward,
        )
        try:
            return msgspec.structs.replace(outcome, scoring=await ledger.submit(command))
        except (Refusal, CommandFailed) as error:
            return _failed(found, str(error))


def _skipped(found: Scorable, reason: str) -> Outcome:
    return Outcome(rollout_id=found.rollout_id, outcome="skipped", reason=reason, was=found.reward)


def _failed(found: Scorable, reason: str) -> Outcome:
    return Outcome(rollout_id=found.rollout_id, outcome="failed", reason=reason, was=found.reward)
