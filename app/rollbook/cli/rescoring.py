"""`rollbook rescore`: scoring rollouts that are over once more, from the traces they left."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rollbook.ledger import scored
from rollbook.ledger.codec import CodecError
from rollbook.ledger.commands import Rescore, Score
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
    task: Annotated[str, typer.Option(help="The task to score with.", metavar="MODULE:TASK")],
    prefix: Annotated[str | None, typer.Option(help="Every rollout whose id starts so.")] = None,
    queue: Annotated[str | None, typer.Option(help="Every rollout of this queue.")] = None,
    label_prefix: Annotated[str | None, typer.Option(help="Every rollout whose label starts so.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Score, print, and change nothing.")] = False,
    at_once: Annotated[int, typer.Option(min=1, help="How many are scored at a time.")] = AT_ONCE,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Score rollouts that are over once more, from their traces: name ids, or options that all must fit.

    No model is asked but the task's judges. Earlier scores are kept beside the new ones. The exit code is 1 where a
    score did not come back because something went wrong, or an id is unknown; what cannot be scored is skipped.
    """
    chosen = (prefix, queue, label_prefix)
    if bool(ids) == any(value is not None for value in chosen):
        raise typer.BadParameter("name ids, or --prefix, --queue or --label-prefix", param_hint="ID...")
    selection = _Selection(tuple(ids or ()), *chosen)
    with _their_output_aside():
        scoring = _loaded(task)
    told = JsonLines() if json else Table(dry_run=dry_run)
    command = _Rescoring(scoring, task, by=f"cli:{user_name()}", dry_run=dry_run, at_once=at_once)
    return asyncio.run(_run(database_url, selection, command, told))


class _Selection(msgspec.Struct, frozen=True):
    ids: tuple[str, ...]
    prefix: str | None
    queue: str | None
    label_prefix: str | None

    def of(self, reader: Reader) -> AsyncIterator[Scorable | str]:
        if self.ids:
            return scored.named(reader, self.ids)
        return scored.selected(reader, prefix=self.prefix, queue=self.queue, label_prefix=self.label_prefix)


def _loaded(reference: str) -> Task[Any]:
    from rollbook.tasks.errors import TaskError
    from rollbook.tasks.scoring import check_scores
    from rollbook.tasks.task import load_task

    try:
        found = load_task(reference)
        check_scores(found)
    except (ImportError, ValueError, TypeError, TaskError) as error:
        raise CommandError(f"--task {reference}: {error}") from error
    except Exception as error:
        raise CommandError(f"--task {reference}: loading it raised {type(error).__name__}: {error}") from error
    return found


@contextlib.contextmanager
def _their_output_aside() -> Iterator[None]:
    """What scoring code prints goes to standard error: standard output is ours."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


async def _run(database_url: str, selection: _Selection, command: _Rescoring, told: Table | JsonLines) -> int:
    async with _opened(database_url, dry_run=command.dry_run) as (reader, ledger):
        outcomes = command.outcomes(selection.of(reader), reader, ledger)
        async with contextlib.aclosing(outcomes):
            while True:
                # Their code runs while we wait, and only then.
                with _their_output_aside():
                    outcome = await anext(outcomes, None)
                if outcome is None:
                    return told.end()
                told.outcome(outcome)


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


class _Rescoring:
    """Scores one rollout after the other, some at a time, in their order. Only those few traces are in memory."""

    def __init__(self, task: Task[Any], name: str, *, by: str, dry_run: bool, at_once: int) -> None:
        self.dry_run = dry_run
        self._task = task
        self._name = name
        self._by = by
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
            return Outcome(rollout_id=found, outcome="failed", reason="no rollout has this id")
        why = _LIVE if found.active else _ARCHIVED if found.archived else _TRACELESS if found.trace is None else None
        if why is not None or found.trace is None:
            return _skipped(found, why or _TRACELESS)
        try:
            trace = await self._trace(reader, found.trace)
        except (CodecError, ValueError) as error:
            return _failed(found, str(error))
        if trace is None:
            return _skipped(found, _ARCHIVED)  # meanwhile
        return await self._scored(found, trace, ledger)

    async def _trace(self, reader: Reader, position: int) -> Trace | None:
        from rollbook.traces.storage import unpack

        event = await scored.saved_trace(reader, position)
        if event is None:
            return None
        try:
            return unpack(base64.b64decode(event.data, validate=True))
        except binascii.Error as error:
            raise ValueError(f"its trace is damaged: {error}") from error

    async def _scored(self, found: Scorable, trace: Trace, ledger: Ledger | None) -> Outcome:
        from rollbook.tasks.rescoring import rescored, why_unscored

        why = why_unscored(trace)
        if why is not None:
            return _skipped(found, why)
        try:
            result = await rescored(trace, self._task)
        except ValueError as error:
            return _failed(found, f"its data does not fit the task: {error}")
        outcome = Outcome(
            rollout_id=found.rollout_id,
            outcome="scored",
            was=found.reward,
            reward=result.reward,
            rewards=dict(result.rewards),
            metrics=dict(result.metrics),
            errors=[error.message for error in result.errors],
            judge_tokens=sum(call.usage.total_tokens for call in result.usage if call.usage is not None),
        )
        if ledger is None:
            return outcome
        command = Rescore(
            rollout_id=found.rollout_id,
            task=self._name,
            by=self._by,
            scores=tuple(Score(*item) for item in (*result.metrics.items(), *result.rewards.items())),
            weights={name: result.weights.get(name, 1.0) for name in result.rewards},
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
