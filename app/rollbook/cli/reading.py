"""`rollbook rollouts` and `rollbook show`: what the ledger knows, for people and for scripts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from rollbook.ledger.engines import DEFAULT_DATABASE_URL
from rollbook_projections import RolloutState

from . import options, output
from .history import History, read_history, summary
from .session import read_session

PAGE = 500
Status = Literal["queued", "running", "grading", "success", "failure", "cancelled"]


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
    """List rollouts, the newest first; with --json one object on each line."""
    with read_session(database_url) as session:
        listed: list[RolloutState] = []
        found = 0
        more = True
        while more and found < limit:
            size = min(PAGE, limit - found)
            page = session.run(
                session.reader.rollouts_page(status=status, queue=queue, prefix=prefix, before=before, limit=size)
            )
            found += len(page)
            more = len(page) == size
            before = page[-1].number if page else before
            if json:
                output.put_bytes(b"".join(output.json_line(summary(state)) for state in page))
            else:
                listed += page
    if not json:
        _list(listed)
        if more:
            output.put(f"\nOlder ones: --before {before}\n")


def _list(states: list[RolloutState]) -> None:
    if not states:
        output.put("no rollouts\n")
        return
    output.put_table(
        ("number", "rollout", "queue", "status", "attempt", "admitted", "took", "error"),
        [
            (
                state.number,
                state.rollout_id,
                state.queue,
                state.status,
                state.attempt,
                output.time_text(state.admitted_at),
                None if state.finished_at is None else output.seconds_text(state.admitted_at, state.finished_at),
                state.err_category,
            )
            for state in states
        ],
    )


def show(
    rollout_id: Annotated[str, typer.Argument(metavar="ID")],
    *,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Show one rollout: state, attempts, spans, scores and result."""
    with read_session(database_url) as session:
        history = read_history(session.reader, rollout_id)
    if json:
        output.put_json(_document(history))
    else:
        _tell(history)


def _document(history: History) -> dict[str, object]:
    """The state's fields and, beside them, what belongs to it."""
    rest = {name: getattr(history, name) for name in History.__struct_fields__ if name != "state"}
    return {**msgspec.structs.asdict(history.state), **rest}


def _tell(history: History) -> None:
    state = history.state
    facts: list[tuple[str, object]] = [
        ("rollout", state.rollout_id),
        ("status", state.status),
        ("queue", state.queue),
        ("label", history.label),
        ("chat endpoint", history.endpoint_origin),
        ("attempt", f"{state.attempt} ({state.attempts_counted} of {state.max_attempts} used up)"),
        ("scheduler", state.scheduler),
        ("admitted", output.time_text(state.admitted_at)),
        ("finished", output.time_text(state.finished_at)),
        ("lease ends", output.time_text(state.lease_expires_at) if state.finished_at is None else None),
    ]
    if history.result is not None:
        facts += [("error", history.result.err_message), ("category", history.result.err_category)]
    output.put_table(("", ""), [fact for fact in facts if fact[1] not in (None, "")])
    _part(
        "attempts",
        ("attempt", "scheduler", "started", "took", "outcome", "reason"),
        [
            (
                item.attempt,
                item.scheduler,
                output.time_text(item.started_at),
                None if item.ended_at is None else output.seconds_text(item.started_at, item.ended_at),
                item.outcome or "open",
                item.reason,
            )
            for item in history.attempts
        ],
    )
    _part(
        "phases",
        ("attempt", "phase", "entered"),
        [(item.attempt, item.phase, output.time_text(item.at)) for item in history.phases],
    )
    _part(
        "spans",
        ("attempt", "stage", "started", "took"),
        [
            (
                item.attempt,
                item.stage,
                output.time_text(item.started_at),
                output.seconds_text(item.started_at, item.ended_at),
            )
            for item in history.spans
        ],
    )
    _part(
        "scores",
        ("attempt", "kind", "name", "value", "weight"),
        [
            (item.attempt, item.kind, item.name, "null" if item.value is None else item.value, item.weight)
            for item in history.scores
        ],
    )
    _part(
        "cancellations",
        ("requested", "by", "selector"),
        [(output.time_text(item.at), item.requested_by, item.selector) for item in history.cancellations],
    )
    if history.result is not None and history.result.sample is not None:
        output.put(f"\nsample\n{output.printable(bytes(history.result.sample).decode())}\n")


def _part(title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        output.put("\n")
        output.put_table(columns, rows, title=title)
