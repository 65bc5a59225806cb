"""Which secret keys the ledger's processes went by: a process with another one is refused at its start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "key_fingerprints",
        sa.Column("generation", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("first_seen_at", _Big, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("key_fingerprints")
