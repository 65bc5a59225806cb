"""The ledger: events with their guards, the projections, and the views for audit."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from rollbook_projections.views import VIEWS_1, view_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_CLAIMABLE = "status = 'queued' AND scheduler IS NULL"


def _column(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False, key: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null, primary_key=key, autoincrement=False)


def _big(name: str, *, null: bool = False, key: bool = False) -> sa.Column[Any]:
    return _column(name, _Big, null=null, key=key)


def _int(name: str, *, key: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Integer(), key=key)


def _text(name: str, *, null: bool = False, key: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Text(), null=null, key=key)


def _bytes(name: str) -> sa.Column[Any]:
    return _column(name, sa.LargeBinary())


HISTORY: dict[str, tuple[sa.Column[Any], ...]] = {
    "admissions": (_big("at"), _text("label", null=True), _text("endpoint_origin", null=True)),
    "lease_changes": (_big("at"), _text("kind"), _big("expires_at"), _text("reason", null=True)),
    "attempt_starts": (_int("attempt"), _big("at"), _text("scheduler")),
    "attempt_ends": (_int("attempt"), _big("at"), _text("outcome"), _text("reason", null=True)),
    "phases": (_int("attempt"), _big("at"), _text("phase")),
    "stage_spans": (_int("idx", key=True), _int("attempt"), _text("stage"), _big("started_at"), _big("ended_at")),
    "scores": (
        _int("attempt"),
        _text("kind"),
        _text("name"),
        _column("value", sa.Double(), null=True),
        _column("weight", sa.Double(), null=True),
    ),
    "cancellations": (_big("at"), _text("requested_by"), _text("selector")),
    "outcomes": (_big("at"), _text("status"), _text("err_category", null=True), _text("err_message", null=True)),
}

# A replacing INSERT deletes the row it collides with without a DELETE trigger, so the insert itself is checked.
_SQLITE_GUARDS = {
    "events_no_update": (
        "BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only: UPDATE refused'); END"
    ),
    "events_no_delete": (
        "BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only: DELETE refused'); END"
    ),
    "events_no_replace": (
        "BEFORE INSERT ON events"
        " WHEN NEW.position <= (SELECT position FROM events ORDER BY position DESC LIMIT 1)"
        " OR EXISTS (SELECT 1 FROM events WHERE number = NEW.number AND seq = NEW.seq)"
        " BEGIN SELECT RAISE(ABORT, 'events are append-only: INSERT over or before an existing event refused'); END"
    ),
}


def upgrade() -> None:
    op.create_table(
        "events",
        _big("position", key=True),
        _big("number"),
        _int("seq"),
        _text("type"),
        _int("version"),
        _big("recorded_at"),
        _text("payload"),
        _bytes("hash"),
        sa.UniqueConstraint("number", "seq", name="events_number_seq"),
    )
    op.create_table("ledger_head", _int("id", key=True), _big("position"), _big("number"), _big("events"))
    op.execute("INSERT INTO ledger_head (id, position, number, events) VALUES (1, 0, 0, 0)")
    op.create_table(
        "rollouts",
        _big("number", key=True),
        _text("rollout_id"),
        _int("seq"),
        _bytes("head"),
        _text("queue"),
        _text("status"),
        _int("attempt"),
        _int("attempts_counted"),
        _int("max_attempts"),
        _text("scheduler", null=True),
        _bytes("lease_digest"),
        _big("lease_timeout_us"),
        _big("lease_expires_at"),
        _big("cancel_requested_at", null=True),
        _big("admitted_at"),
        _big("queued_at"),
        _big("agent_timeout_us", null=True),
        _big("agent_deadline_at", null=True),
        _big("changed_at"),
        _big("finished_at", null=True),
        _big("request_position"),
        _big("result_position", null=True),
        _text("err_category", null=True),
        sa.UniqueConstraint("rollout_id", name="rollouts_rollout_id"),
    )
    for name, columns, where in (
        ("rollouts_claimable", ["queue", "number"], _CLAIMABLE),
        ("rollouts_deadline", ["agent_deadline_at"], f"{_CLAIMABLE} AND agent_deadline_at IS NOT NULL"),
        ("rollouts_live", ["number"], "finished_at IS NULL"),
        ("rollouts_owned", ["scheduler", "number"], "scheduler IS NOT NULL"),
        ("rollouts_finished", ["finished_at"], "finished_at IS NOT NULL"),
    ):
        op.create_index(name, "rollouts", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_table("queue_counts", _text("queue", key=True), _big("queued"), _big("running"))
    for name, own in HISTORY.items():
        key = (_big("number", key=True), _big("position", key=True))
        op.create_table(name, *key, *own, sqlite_with_rowid=False)
    op.create_table("secrets", _big("number", key=True), _bytes("sealed"))
    op.create_table(
        "members",
        _text("member_id", key=True),
        _text("kind"),
        _text("host"),
        _int("pid"),
        _text("entrypoint", null=True),
        _int("capacity"),
        _big("started_at"),
        _big("beat_at"),
        _big("stopped_at", null=True),
        _int("accepting"),
        _text("trouble", null=True),
    )
    op.create_table("member_queues", _text("member_id", key=True), _text("queue", key=True))
    dialect = op.get_context().dialect.name
    for name, text in VIEWS_1.items():
        op.execute(sa.text(f"CREATE VIEW {name} AS {view_sql(text, dialect)}".replace(":", r"\:")))
    for name, body in _SQLITE_GUARDS.items():
        op.execute(sa.text(f"CREATE TRIGGER {name} {body}".replace(":", r"\:")))


def downgrade() -> None:
    for name in _SQLITE_GUARDS:
        op.execute(f"DROP TRIGGER {name}")
    for name in VIEWS_1:
        op.execute(f"DROP VIEW {name}")
    for name in ("member_queues", "members", "secrets", *HISTORY, "queue_counts", "rollouts", "ledger_head", "events"):
        op.drop_table(name)
