"""`rollbook trace`: the stored trace of a rollout, shortened for people, whole for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args

import msgspec
import typer

from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook.traces.calls import ModelCall
from rollbook.traces.storage import dumps
from rollbook.traces.trace import Rewrite, Stage, Trace

from . import options, output
from .session import read_session
from .tables import Column, cut, put_facts, put_table
from .tracereading import LaterScoring, StoredTrace, stored_trace

SHOWN_CHARS = 400
"""How much of a text is shown in a pipe; a terminal may be narrower."""


def trace(
    rollout_id: Annotated[str, typer.Argument(metavar="ID")],
    *,
    attempt: Annotated[int | None, typer.Option(min=1, help="The attempt; the last one unless said.")] = None,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> None:
    """Show the trace of a rollout of a task: messages by branches, model calls, scores, times, errors.

    Texts are shortened. --json prints all of it, in the form that docs/traces.md describes.
    """
    with read_session(database_url) as session:
        stored = session.run(stored_trace(session.reader, rollout_id, attempt=attempt))
    if json:
        output.put_bytes(dumps(stored.trace) + b"\n")
        return
    _tell(stored)


def _tell(stored: StoredTrace) -> None:
    told = stored.trace
    _tell_facts(stored)
    _part("task", (Column("field"), Column("value", "cut")), [(name, _value(told.task[name])) for name in told.task])
    _tell_times(told)
    _tell_branches(told)
    _tell_calls(told)
    _tell_rewrites(told)
    _tell_scores(stored)
    _part(
        "errors",
        (Column("stage"), Column("category"), Column("type"), Column("message", "wrap")),
        [(error.stage, error.category, error.type, error.message) for error in told.errors],
    )
    _part("info", (Column("name"), Column("value", "cut")), [(name, _value(told.info[name])) for name in told.info])


def _tell_facts(stored: StoredTrace) -> None:
    told, later = stored.trace, stored.later
    sums = told.token_sums
    reward = _number(told.reward)
    if told.reward is not None and not told.ok:
        reward += ", which does not count: the rollout failed"
    put_facts(
        [
            ("rollout", told.rollout_id),
            ("attempt", f"{stored.attempt} of {stored.attempts}"),
            ("task", str(told.task.get("id", ""))),
            ("harness", told.harness),
            ("failed", "no" if told.ok else _cause(told)),
            ("stop condition", told.stop_condition or "none"),
            ("truncated", "yes" if told.is_truncated else "no"),
            ("turns", str(told.num_turns)),
            ("tokens", f"{sums.input_tokens} in, {sums.output_tokens} out, {sums.total_tokens} in all"),
            ("reward", reward),
            ("scored since", None if later is None else _since(later)),
        ]
    )


def _cause(told: Trace) -> str:
    from rollbook.tasks.errors import cause_of

    cause = cause_of(told.errors)
    return "yes: it was ended from outside" if cause is None else f"yes, in {cause.stage}: {cause.message}"


def _since(later: LaterScoring) -> str:
    return f"reward {_number(later.reward)} in scoring {later.scoring} by {later.asked_by}: {later.task}"


def _tell_times(told: Trace) -> None:
    spans = {span.stage: span for span in told.spans}
    rows: list[tuple[object, ...]] = []
    for stage in get_args(Stage):
        span = spans.get(stage)
        if span is None:
            rows.append((stage, "did not run", None))
        else:
            took = "not ended" if span.ended_at is None else output.duration_text(span.started_at, span.ended_at)
            rows.append((stage, output.moment_text(span.started_at), took))
    _part("times", (Column("stage"), Column("started"), Column("took", right=True)), rows)


def _tell_branches(told: Trace) -> None:
    """Each message once: of what a branch shares with earlier ones, its last message only stands there, by name."""
    columns = (Column("node", right=True), Column("call", right=True), Column("role"), Column("message", "cut"))
    final = told.final_branch
    seen: set[int] = set()
    for branch in told.branches:
        new = [number for number in branch.nodes if number not in seen]
        seen.update(new)
        title = f"branch {branch.index}"
        if final is not None and branch.index == final.index:
            title += ", the sample"
        rows = [(number, told.nodes[number].call, *_message(told.nodes[number].message)) for number in new]
        if shared := branch.nodes[: -len(new)]:
            joint = told.nodes[shared[-1]]
            rows.insert(0, (shared[-1], joint.call, str(joint.message.get("role")), "(is above)"))
        _part(title, columns, rows)


def _tell_calls(told: Trace) -> None:
    columns = (
        Column("call", right=True),
        Column("purpose"),
        Column("model", "cut", drop=3),
        Column("took", right=True),
        Column("first chunk", drop=2, right=True),
        Column("tokens in", right=True),
        Column("cached", drop=4, right=True),
        Column("out", right=True),
        Column("for training", drop=1),
        Column("ended", "wrap"),
    )
    rows = [_call(call) for call in (*told.calls, *told.extra_usage)]
    # What no upstream sent needs no column.
    sent = [index for index in range(len(columns)) if any(row[index] not in (None, "") for row in rows)]
    _part("model calls", tuple(columns[index] for index in sent), [tuple(row[index] for index in sent) for row in rows])


def _call(call: ModelCall) -> tuple[object, ...]:
    usage, tokens = call.usage, call.tokens
    sent = [] if tokens is None else [name for name in ("ids", "logprobs") if getattr(tokens, name) is not None]
    return (
        call.number or None,
        call.purpose,
        call.model,
        output.duration_text(call.started_at, call.ended_at),
        None if call.first_chunk_at is None else output.duration_text(call.started_at, call.first_chunk_at),
        "null" if usage is None else usage.input_tokens,
        None if usage is None else usage.cached_input_tokens,
        "null" if usage is None else usage.output_tokens,
        ", ".join(sent),
        call.finish_reason if call.error is None else f"{call.error.kind}: {call.error.message}",
    )


def _tell_rewrites(told: Trace) -> None:
    columns = (
        Column("hook"),
        Column("side"),
        Column("call", right=True),
        Column("before", "cut"),
        Column("after", "cut"),
    )
    rewrites = (*told.request_rewrites, *told.response_rewrites)
    _part("rewrites", columns, [row for rewrite in rewrites for row in _rewritten(rewrite)])


def _rewritten(rewrite: Rewrite) -> list[tuple[object, ...]]:
    """A row for each message that was changed."""
    pairs = zip(rewrite.before, rewrite.after, strict=False)
    return [(rewrite.hook, rewrite.side, rewrite.call, _message(one)[1], _message(two)[1]) for one, two in pairs]


def _tell_scores(stored: StoredTrace) -> None:
    told = stored.trace
    rows: list[tuple[object, ...]] = [
        ("reward", name, _number(value), _number(told.weights.get(name, 1.0))) for name, value in told.rewards.items()
    ]
    rows += [("metric", name, _number(value), None) for name, value in told.metrics.items()]
    title = "scores" if stored.later is None else "scores of the run itself"
    _part(
        title, (Column("kind"), Column("name", "wrap"), Column("value", right=True), Column("weight", right=True)), rows
    )


def _message(message: dict[str, Any]) -> tuple[str, str]:
    """Its role, and what it says in one line: what the model thought, the text, and the tools that it calls."""
    parts = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        parts.append(f"[reasoning: {_text(thought)}]")
    if content := message.get("content"):
        parts.append(_text(content))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        asked = function if isinstance(function, dict) else {}
        parts.append(f"-> {asked.get('name')}({_text(asked.get('arguments') or '')})")
    return str(message.get("role")), _line(" ".join(parts)) or "(empty)"


def _text(content: object) -> str:
    """A text as it is; of a list of parts their texts, and the kinds of those that are none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return msgspec.json.encode(content).decode()
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    return " ".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)


def _value(value: object) -> str:
    return _line(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _line(text: str) -> str:
    return cut(" ".join(text[: 4 * SHOWN_CHARS].split()), SHOWN_CHARS)


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.10g}"


def _part(title: str, columns: tuple[Column, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        output.put("\n")
        put_table(columns, rows, title=title)
