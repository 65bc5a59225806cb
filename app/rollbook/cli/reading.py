"""`rollbook rollouts` and `rollbook show`: what the ledger knows, for people and for scripts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from rollbook.ledger.listing import RolloutView, rollouts_page
from rollbook.ledger.urls import DEFAULT_DATABASE_URL

from . import options, output
from .history import History, read_history
from .session import read_session
from .tables import Column, cut, put_facts, put_table, short

PAGE = 500
LABEL_WIDTH = 40
Status = Literal["queued", "running", "grading", "success", "failure", "cancelled"]

_LISTED = (
    Column("number", drop=4),
    Column("rollout"),
    Column("queue", "cut", drop=1),
    Column("status"),
    Column("attempt", drop=2),
    Column("reward"),
    Column("label", "cut", drop=6),
    Column("admitted", drop=5),
    Column("took", drop=3, right=True),
    Column("error", "cut"),
)


def rollouts(
    *,
    status: Annotated[Status | None, typer.Option(help="Only rollouts that stand there.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only rollouts of this queue.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only rollouts whose id starts so.")] = None,
    before: Annotated[int | None, typer.Option(help="Only rollouts older than this number.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to list.")] = 100,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """List rollouts, the newest first; with --json one object on each line, as GET /rollouts has them.

    A narrow terminal is not shown all columns.
    """
    with read_session(database_url) as session:
        listed: list[RolloutView] = []
        found = 0
        more = True
        while more and found < limit:
            size = min(PAGE, limit - found)
            page = session.run(
                rollouts_page(session.reader, status=status, queue=queue, prefix=prefix, before=before, limit=size)
            )
            found += len(page)
            more = len(page) == size
            before = page[-1].number if page else before
            if json:
                output.put_bytes(b"".join(output.json_line(view) for view in page))
            else:
                listed += page
    if not json:
        _list(listed)
        if more:
            output.put(f"\nOlder ones: --before {before}\n")


def _list(views: list[RolloutView]) -> None:
    if not views:
        output.put("no rollouts\n")
        return
    put_table(
        _LISTED,
        [
            (
                view.number,
                view.rollout_id,
                view.queue,
                view.status,
                view.attempt,
                view.reward,
                None if view.label is None else cut(view.label, LABEL_WIDTH),
                output.moment_text(view.admitted_at),
                _took(view.admitted_at, view.finished_at),
                view.err_category,
            )
            for view in views
        ],
    )


def _took(started_at: int, ended_at: int | None) -> str | None:
    return None if ended_at is None else output.duration_text(started_at, ended_at)


def show(
    rollout_id: Annotated[str, typer.Argument(metavar="ID")],
    *,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Show one rollout: state, attempts, spans, model calls, scores and result."""
    with read_session(database_url) as session:
        history = session.run(read_history(session.reader, rollout_id))
    if json:
        output.put_json(_document(history))
    else:
        _tell(history)


def _document(history: History) -> dict[str, object]:
    """The fields of the list and, beside them, what belongs to the rollout."""
    rest = {name: getattr(history, name) for name in History.__struct_fields__ if name != "view"}
    return {**msgspec.structs.asdict(history.view), **rest}


def _tell(history: History) -> None:
    view = history.view
    put_facts(
        [
            ("rollout", view.rollout_id),
            ("status", view.status),
            ("queue", view.queue),
            ("label", view.label),
            ("chat endpoint", history.endpoint_origin),
            ("attempt", f"{view.attempt} ({view.attempts_counted} of {view.max_attempts} used up)"),
            ("scheduler", view.scheduler and short(view.scheduler)),
            ("admitted", output.moment_text(view.admitted_at)),
            ("finished", output.moment_text(view.finished_at)),
            ("lease ends", output.moment_text(view.lease_expires_at) if view.finished_at is None else None),
            ("reward", None if view.reward is None else f"{view.reward:.10g}"),
            ("error", view.err_message if history.result is None else history.result.err_message),
            ("category", view.err_category),
            ("archived", None if history.archived is None else str(history.archived)),
        ]
    )
    _part(
        "attempts",
        (
            Column("attempt"),
            Column("scheduler"),
            Column("started"),
            Column("took", right=True),
            Column("outcome"),
            Column("reason", "wrap"),
        ),
        [
            (
                item.attempt,
                short(item.scheduler),
                output.moment_text(item.started_at),
                _took(item.started_at, item.ended_at),
                item.outcome or "open",
                item.reason,
            )
            for item in history.attempts
        ],
    )
    _part(
        "phases",
        (Column("attempt"), Column("phase"), Column("entered")),
        [(item.attempt, item.phase, output.moment_text(item.at)) for item in history.phases],
    )
    _part(
        "spans",
        (Column("attempt"), Column("stage"), Column("started"), Column("took", right=True)),
        [
            (item.attempt, item.stage, output.moment_text(item.started_at), _took(item.started_at, item.ended_at))
            for item in history.spans
        ],
    )
    _tell_calls(history)
    _tell_scores(history)
    _part(
        "cancellations",
        (Column("requested"), Column("by"), Column("selector", "wrap")),
        [(output.moment_text(item.at), item.requested_by, item.selector) for item in history.cancellations],
    )
    if history.result is not None and history.result.sample is not None:
        output.put(f"\nsample\n{output.printable(bytes(history.result.sample).decode())}\n")


def _tell_calls(history: History) -> None:
    _part(
        "model calls",
        (
            Column("attempt"),
            Column("call"),
            Column("purpose"),
            Column("model", "wrap"),
            Column("took", right=True),
            Column("tokens in", right=True),
            Column("out", right=True),
            Column("ended", "wrap"),
        ),
        [
            (
                item.attempt,
                item.call,
                item.purpose,
                item.model,
                _took(item.started_at, item.ended_at),
                item.input_tokens,
                item.output_tokens,
                item.finish_reason if item.error_kind is None else f"{item.error_kind}: {item.error or ''}",
            )
            for item in history.calls
        ],
    )
    _part(
        "rewrites",
        (Column("attempt"), Column("hook", "wrap"), Column("side"), Column("call")),
        [(item.attempt, item.hook, item.side, item.call) for item in history.rewrites],
    )
    _part(
        "stops",
        (Column("attempt"), Column("condition", "wrap")),
        [(item.attempt, item.condition) for item in history.stops],
    )
    _part(
        "traces",
        (Column("attempt"), Column("version"), Column("bytes", right=True)),
        [(item.attempt, item.version, item.size_bytes) for item in history.traces],
    )


def _tell_scores(history: History) -> None:
    _part(
        "scores",
        (
            Column("attempt"),
            Column("scoring"),
            Column("kind"),
            Column("name", "wrap"),
            Column("value"),
            Column("weight"),
        ),
        [
            (
                item.attempt,
                item.scoring,
                item.kind,
                item.name,
                "null" if item.value is None else item.value,
                item.weight,
            )
            for item in history.scores
        ],
    )
    _part(
        "scored anew",
        (Column("scoring"), Column("at"), Column("task", "wrap"), Column("by"), Column("reward")),
        [
            (
                item.scoring,
                output.moment_text(item.at),
                item.task,
                item.asked_by,
                "null" if item.reward is None else item.reward,
            )
            for item in history.scorings
        ],
    )


def _part(title: str, columns: tuple[Column, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        output.put("\n")
        put_table(columns, rows, title=title)
