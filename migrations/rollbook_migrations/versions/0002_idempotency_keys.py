"""Admissions keep their idempotency key, by which a repeated one is found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WHERE = sa.text("idempotency_key IS NOT NULL")


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("idempotency_key", sa.Text()))
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
