"""Model calls, stops, rewrites, traces and later scorings as tables, and views of them.

A process of the version before goes on beside this schema: it knows none of the new tables, and its scores are the
attempt's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from rollbook_projections.task_views import VIEWS_3
from rollbook_projections.text import column_text
from rollbook_projections.views import VIEWS_1, VIEWS_2, view_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BEFORE = {name: text for name, text in {**VIEWS_1, **VIEWS_2}.items() if name in VIEWS_3}
_PAGE_EVENTS = 500
_MOST_TOKENS = 2**40
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_EVENTS_AFTER = (
    "SELECT position, number, recorded_at, type, payload FROM events WHERE position > :after AND (type IN"
    " ('model_called', 'exchange_stopped', 'message_rewritten', 'trace_saved', 'scores_revised')"
    " OR type IN ('reward_recorded', 'metric_recorded') AND payload LIKE '%\"scoring\":%'"
    " AND NOT payload LIKE '%\"scoring\"\\:0}') ORDER BY position LIMIT :page"
)
_ARCHIVED = (
    "SELECT count(DISTINCT s.number) FROM archived_rollouts s JOIN {table} t ON t.number = s.number WHERE {condition}"
)


def _column(name: str, kind: Any, *, null: bool = False, key: bool = False) -> sa.Column[Any]:
    options: dict[str, Any] = {"primary_key": True, "autoincrement": False} if key else {"nullable": null}
    return sa.Column(name, kind, **options)


def _int(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Integer(), null=null)


def _big(name: str, *, null: bool = False, key: bool = False) -> sa.Column[Any]:
    return _column(name, _BIG, null=null, key=key)


def _text(name: str, *, null: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Text(), null=null)


_TABLES: dict[str, Callable[[], tuple[sa.Column[Any], ...]]] = {
    "scorings": lambda: (
        _big("at"),
        _int("scoring"),
        _text("task"),
        _text("asked_by"),
        _column("reward", sa.Double(), null=True),
    ),
    "model_calls": lambda: (
        _int("attempt"),
        _int("call"),
        _text("purpose"),
        _text("model", null=True),
        _big("started_at"),
        _big("first_chunk_at", null=True),
        _big("ended_at"),
        _int("streamed"),
        _big("input_tokens", null=True),
        _big("output_tokens", null=True),
        _big("cached_input_tokens", null=True),
        _text("finish_reason", null=True),
        _text("error_kind", null=True),
        _text("error", null=True),
    ),
    "stops": lambda: (_int("attempt"), _big("at"), _text("condition")),
    "rewrites": lambda: (_int("attempt"), _big("at"), _text("hook"), _text("side"), _int("call", null=True)),
    "traces": lambda: (_int("attempt"), _big("at"), _int("version"), _big("size_bytes")),
}


def upgrade() -> None:
    for name, own in _TABLES.items():
        key = (_big("number", key=True), _big("position", key=True))
        op.create_table(name, *key, *own(), sqlite_with_rowid=False)
    op.add_column("scores", sa.Column("scoring", sa.Integer(), server_default=sa.text("0"), nullable=False))
    for table, row in _recorded():
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        op.get_bind().execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), row)
    for name, text in VIEWS_3.items():
        _make_view(name, text)


def downgrade() -> None:
    for table, condition in (*((name, "1 = 1") for name in _TABLES), ("scores", "t.scoring > 0")):
        lost = op.get_bind().scalar(sa.text(_ARCHIVED.format(table=table, condition=condition)))
        if lost:
            raise RuntimeError(
                f"{table} has rows of {lost} rollouts whose events are archived; an older ledger has no place for them"
            )
    for name in VIEWS_3:
        if name not in _BEFORE or op.get_context().dialect.name == "sqlite":
            op.execute(f"DROP VIEW {name}")
    for name, text in _BEFORE.items():
        _make_view(name, text)
    # An older ledger would add later scorings to the first one. Their events stay.
    op.execute("DELETE FROM scores WHERE scoring > 0")
    op.drop_column("scores", "scoring")
    for name in _TABLES:
        op.drop_table(name)


def _make_view(name: str, text: str) -> None:
    """Make a view; one that is there already keeps what was granted on it."""
    dialect = op.get_context().dialect.name
    if dialect == "sqlite":
        op.execute(f"DROP VIEW IF EXISTS {name}")
        create = "CREATE VIEW"
    else:
        create = "CREATE OR REPLACE VIEW"
    op.execute(sa.text(f"{create} {name} AS {view_sql(text, dialect)}".replace(":", r"\:")))


def _recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is in the events already. There are such only where the schema has been here before and went back."""
    after = 0
    bind = op.get_bind()
    while page := bind.execute(sa.text(_EVENTS_AFTER), {"after": after, "page": _PAGE_EVENTS}).all():
        for position, number, recorded_at, kind, payload in page:
            after = position
            found = _row(kind, recorded_at, json.loads(payload))
            if found is not None:
                table, row = found
                yield table, {"number": number, "position": position, **row}


def _row(kind: str, at: int, told: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The row of an event, as the projections of this version make it."""
    match kind:
        case "model_called":
            return "model_calls", {
                **_same(told, "attempt", "call", "started_at", "first_chunk_at", "ended_at"),
                **_texts(told, "purpose", "model", "finish_reason", "error_kind", "error"),
                "streamed": int(told["streamed"]),
                **{name: _tokens(told[name]) for name in ("input_tokens", "output_tokens", "cached_input_tokens")},
            }
        case "exchange_stopped":
            return "stops", {**_same(told, "attempt"), "at": at, **_texts(told, "condition")}
        case "message_rewritten":
            return "rewrites", {**_same(told, "attempt", "side", "call"), "at": at, **_texts(told, "hook")}
        case "trace_saved":
            return "traces", {**_same(told, "attempt", "version", "size_bytes"), "at": at}
        case "scores_revised":
            scoring = {**_same(told, "scoring", "reward"), "at": at, **_texts(told, "task")}
            return "scorings", {**scoring, "asked_by": column_text(told["by"])}
        case _ if told.get("scoring", 0) > 0:
            score = {**_same(told, "attempt", "value", "scoring"), **_texts(told, "name"), "weight": told.get("weight")}
            return "scores", {**score, "kind": kind.removesuffix("_recorded")}
    return None


def _same(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: told[name] for name in names}


def _texts(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: column_text(told[name]) for name in names}


def _tokens(count: int | None) -> int | None:
    return count if count is not None and 0 <= count <= _MOST_TOKENS else None
