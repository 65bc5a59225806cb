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


def _id(name: str, *, key: bool = False) -> sa.Column[Any]:
    # Compared by its bytes, as SQLite does by itself: prefixes are ranges.
    return _column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), key=key)


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
_POSTGRES_GUARDS = (
    "CREATE FUNCTION refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RAISE EXCEPTION 'events are append-only: % refused', TG_OP; END $$",
    # For each statement: one that would change no row is refused too.
    "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()",
    "CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()",
)
_GUARDS = {
    "sqlite": tuple(f"CREATE TRIGGER {name} {body}" for name, body in _SQLITE_GUARDS.items()),
    "postgresql": _POSTGRES_GUARDS,
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
    op.create_table(
        "ledger_head",
        _int("id", key=True),
        _big("position"),
        _big("number"),
        _big("events"),
        # Changed by each batch: room for many versions in one page.
        postgresql_with={"fillfactor": 10},
    )
    op.execute("INSERT INTO ledger_head (id, position, number, events) VALUES (1, 0, 0, 0)")
    op.create_table(
        "rollouts",
        _big("number", key=True),
        _id("rollout_id"),
        _int("seq"),
        _bytes("head"),
        _id("queue"),
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
        postgresql_with={"fillfactor": 85},
    )
    for name, columns, where in (
        ("rollouts_claimable", ["queue", "number"], _CLAIMABLE),
        ("rollouts_deadline", ["agent_deadline_at"], f"{_CLAIMABLE} AND agent_deadline_at IS NOT NULL"),
        ("rollouts_live", ["number"], "finished_at IS NULL"),
        ("rollouts_owned", ["scheduler", "number"], "scheduler IS NOT NULL"),
        ("rollouts_finished", ["finished_at"], "finished_at IS NOT NULL"),
    ):
        op.create_index(name, "rollouts", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_table(
        "queue_counts", _id("queue", key=True), _big("queued"), _big("running"), postgresql_with={"fillfactor": 20}
    )
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
    for statement in _GUARDS[dialect]:
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TRIGGER events_append_only ON events")
        op.execute("DROP TRIGGER events_no_truncate ON events")
        op.execute("DROP FUNCTION refuse_event_change")
    else:
        for name in _SQLITE_GUARDS:
            op.execute(f"DROP TRIGGER {name}")
    for name in VIEWS_1:
        op.execute(f"DROP VIEW {name}")
    for name in ("member_queues", "members", "secrets", *HISTORY, "queue_counts", "rollouts", "ledger_head", "events"):
        op.drop_table(name)
