"""Admissions keep their idempotency key, by which a repeated one is found."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WHERE = sa.text("idempotency_key IS NOT NULL")
_Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_rollouts = sa.table("rollouts", sa.column("number", _Big), sa.column("idempotency_key", sa.Text()))
_admissions = sa.table("admissions", sa.column("position", _Big))
_events = sa.table("events", sa.column("position", _Big), sa.column("number", _Big), sa.column("payload", sa.Text()))


def upgrade() -> None:
    # Before the table is locked. There are such only where the schema has been here before and went back.
    keys = _recorded_keys()
    op.add_column("rollouts", sa.Column("idempotency_key", sa.Text()))
    for number, key in keys.items():
        op.execute(_rollouts.update().where(_rollouts.c.number == number).values(idempotency_key=key))
    op.create_index(
        "rollouts_idempotency",
        "rollouts",
        ["idempotency_key"],
        unique=True,
        sqlite_where=_WHERE,
        postgresql_where=_WHERE,
    )


def downgrade() -> None:
    op.drop_index("rollouts_idempotency", "rollouts")
    op.drop_column("rollouts", "idempotency_key")


def _recorded_keys() -> dict[int, str]:
    """The keys that admission events carry, by rollout number."""
    query = (
        sa.select(_events.c.number, _events.c.payload)
        .join(_admissions, _admissions.c.position == _events.c.position)
        .where(_events.c.payload.like('%"idempotency_key":"%'))
    )
    found = ((number, json.loads(payload).get("idempotency_key")) for number, payload in op.get_bind().execute(query))
    return {number: key for number, key in found if key is not None}
