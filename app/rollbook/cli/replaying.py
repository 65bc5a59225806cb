"""`rollbook replay`: the ledger folded anew from its events, compared with its rows, or as it was at a moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook_client.statuses import TERMINAL_STATUSES

from . import options, output
from .tables import Column, put_facts, put_table, short
from .verdicts import Checked, counted, verdict

if TYPE_CHECKING:
    from rollbook.ledger.past import LedgerThen


def replay(
    rollout_id: Annotated[str | None, typer.Argument(metavar="ID", show_default=False)] = None,
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the live rows; 1 if they differ.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION|TIME",
            help="As it was: events up to a position, or a time: 2030-01-31T12:00 (UTC), or ago: -90s, -2h, -30d.",
        ),
    ] = None,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Fold the whole ledger anew from its events; with --verify, compare with the rows that are served.

    With --until, the queues and totals as they were then, or with an ID that rollout.
    """
    if until is not None:
        if verify:
            raise typer.BadParameter("the rows are what they are now; leave out --until", param_hint="--verify")
        return _then(rollout_id, until, database_url, json=json)
    if rollout_id is not None:
        raise typer.BadParameter("say until when with --until; `rollbook show` has it as it is", param_hint="ID")
    if verify:
        return _verify(database_url, json=json)
    return _totals(database_url, json=json)


def _totals(database_url: str, *, json: bool) -> int:
    from rollbook.ledger.replay import replay as fold

    folded = fold(database_url)
    if json:
        output.put_json(folded)
    else:
        archived = f"; {folded.archived} of them archived" if folded.archived else ""
        rollouts = _by_status(sum(folded.statuses.values()), folded.statuses)
        output.put(f"{counted(folded.head.events, 'event')}, {rollouts}{archived}\n")
    return 0


def _verify(database_url: str, *, json: bool) -> int:
    from rollbook.ledger.replay import verify as compare

    compared = compare(database_url)
    checked = Checked(compared.events, compared.rollouts, compared.archived, compared.cut)
    return verdict(checked, "difference", compared.differences, fine="every row is what its events say", json=json)


def _then(rollout_id: str | None, until: str, database_url: str, *, json: bool) -> int:
    from rollbook.ledger.past import RolloutThen, ledger_then, moment_of, rollout_then

    try:
        moment = moment_of(until, now_us=time.time_ns() // 1_000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--until") from error
    if rollout_id is None:
        ledger = ledger_then(database_url, moment)
        if json:
            output.put_json(ledger)
            return 0
        output.put(f"{_told_by(ledger)}, {_by_status(ledger.rollouts, _as_queues_count(ledger))}\n")
        if ledger.archived:
            output.put(f"how {counted(ledger.archived, 'rollout')} stood is in archives\n")
        if ledger.queues:
            rows = [(name, count.queued, count.running) for name, count in sorted(ledger.queues.items())]
            output.put("\n")
            put_table((Column("queue", "cut"), Column("queued"), Column("running")), rows)
        return 0
    rollout = rollout_then(database_url, rollout_id, moment)
    if json:
        seen = {name: getattr(rollout, name) for name in RolloutThen.__struct_fields__ if name != "view"}
        output.put_json({**seen, **msgspec.structs.asdict(rollout.view)})
        return 0
    view = rollout.view
    waits = view.status == "queued" and view.scheduler is None
    put_facts(
        [
            ("rollout", view.rollout_id),
            ("last event", f"{output.time_text(rollout.recorded_at)}, position {rollout.position}, seq {rollout.seq}"),
            ("status", view.status),
            ("queue", view.queue),
            ("label", view.label),
            ("attempt", f"{view.attempt} ({view.attempts_counted} of {view.max_attempts} used up)"),
            ("scheduler", view.scheduler and short(view.scheduler)),
            ("admitted", output.time_text(view.admitted_at)),
            ("queued since", output.time_text(view.queued_at) if waits else None),
            ("finished", output.time_text(view.finished_at)),
            ("lease ends", output.time_text(view.lease_expires_at) if view.finished_at is None else None),
            ("deadline", output.time_text(view.agent_deadline_at) if view.finished_at is None else None),
            ("cancel asked", output.time_text(view.cancel_requested_at)),
            ("reward", None if view.reward is None else f"{view.reward:.10g}"),
            ("error", view.err_message),
            ("category", view.err_category),
        ]
    )
    return 0


def _told_by(ledger: LedgerThen) -> str:
    """What the ledger knows of then: its events, or only the rows of rollouts whose events are archived."""
    if ledger.events:
        return f"up to position {ledger.position}: {counted(ledger.events, 'event')}"
    return "no events up to then are left here" if ledger.rollouts else "no events up to then"


def _as_queues_count(ledger: LedgerThen) -> dict[str, int]:
    """Those that are over by their status, the others as the table below has them: one that a scheduler has claimed
    runs, though its status is queued until its code does."""
    over = {status: count for status, count in ledger.statuses.items() if status in TERMINAL_STATUSES}
    queued = sum(count.queued for count in ledger.queues.values())
    running = sum(ledger.statuses.values()) - sum(over.values()) - queued
    return {**over, **{name: count for name, count in (("queued", queued), ("running", running)) if count}}


def _by_status(rollouts: int, statuses: dict[str, int]) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return counted(rollouts, "rollout") + (f" ({counts})" if counts else "")
