"""Archives: what stands in the ledger for events that lie in a file, and guards that let only those go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from rollbook_projections.guards import (
    POSTGRES_FUNCTIONS_2,
    POSTGRES_GUARDS_2,
    SQLITE_GUARDS_2,
    postgres_function_sql,
)

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_SQLITE_GUARDS_1 = {
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
        "archives",
        sa.Column("archive_id", sa.Text(), primary_key=True),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", _Big, nullable=False),
        sa.Column("before_at", _Big, nullable=False),
        sa.Column("made_at", _Big, nullable=False),
        sa.Column("file_rollouts", _Big, nullable=False),
        sa.Column("file_events", _Big, nullable=False),
        sa.Column("rollouts", _Big, nullable=False),
        sa.Column("events", _Big, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("completed_at", _Big, nullable=True),
    )
    op.create_table(
        "archived_rollouts",
        sa.Column("number", _Big, primary_key=True, autoincrement=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("first_position", _Big, nullable=False),
        sa.Column("last_position", _Big, nullable=False),
        sa.Column("archiving", sa.Integer(), nullable=False),
    )
    if op.get_context().dialect.name == "sqlite":
        for name in _SQLITE_GUARDS_1:
            op.execute(f"DROP TRIGGER {name}")
        for text in SQLITE_GUARDS_2.values():
            op.execute(_plain(text))
        return
    op.execute("DROP TRIGGER events_append_only ON events")
    op.execute("DROP TRIGGER events_no_truncate ON events")
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    for name in POSTGRES_FUNCTIONS_2:
        op.execute(_plain(postgres_function_sql(name, schema)))
    for name, guard in POSTGRES_GUARDS_2.items():
        op.execute(guard.sql(name))


def downgrade() -> None:
    archived = op.get_bind().scalar(sa.text("SELECT count(*) FROM archived_rollouts"))
    if archived:
        raise RuntimeError(f"the events of {archived} rollouts are archived; an older ledger cannot account for them")
    if op.get_context().dialect.name == "sqlite":
        for name in SQLITE_GUARDS_2:
            op.execute(f"DROP TRIGGER {name}")
        for name, body in _SQLITE_GUARDS_1.items():
            op.execute(_plain(f"CREATE TRIGGER {name} {body}"))
    else:
        for name, guard in POSTGRES_GUARDS_2.items():
            op.execute(f"DROP TRIGGER {name} ON {guard.table}")
        for name in POSTGRES_FUNCTIONS_2:
            op.execute(f"DROP FUNCTION {name}")
        op.execute(
            "CREATE FUNCTION refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$"
            r" BEGIN RAISE EXCEPTION 'events are append-only\: % refused', TG_OP; END $$"
        )
        op.execute(
            "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()"
        )
        op.execute(
            "CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_event_change()"
        )
    op.drop_table("archived_rollouts")
    op.drop_table("archives")


def _plain(text: str) -> sa.TextClause:
    """A statement without parameters."""
    return sa.text(text.replace(":", r"\:"))
