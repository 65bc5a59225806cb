"""Views with days, hours, labels and what is open now, for the questions of docs/sql.md."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from rollbook_projections.views import VIEWS_2, view_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    for name, text in VIEWS_2.items():
        op.execute(sa.text(f"CREATE VIEW {name} AS {view_sql(text, dialect)}".replace(":", r"\:")))


def downgrade() -> None:
    for name in VIEWS_2:
        op.execute(f"DROP VIEW {name}")
