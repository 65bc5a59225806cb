"""Facts of now that all processes share: whether admission is closed, and how many slots each scheduler has free."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "drains",
        sa.Column("queue", sa.Text(), primary_key=True),
        sa.Column("closed_at", _Big, primary_key=True, autoincrement=False),
        sa.Column("closed_by", sa.Text(), nullable=False),
        sa.Column("opened_at", _Big),
        sa.Column("opened_by", sa.Text()),
    )
    op.add_column("ledger_head", sa.Column("draining", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("members", sa.Column("free", sa.Integer()))


def downgrade() -> None:
    op.drop_column("members", "free")
    op.drop_column("ledger_head", "draining")
    op.drop_table("drains")
