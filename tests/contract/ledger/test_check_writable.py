"""A process that is about to start others finds out first whether the ledger can be written."""

from __future__ import annotations

import sqlalchemy as sa

from rollbook.ledger.database import database_of
from tests.support.ledger import rows


def test_a_writable_ledger_stays_as_it_was(migrated_url: sa.URL, database_url: str) -> None:
    before = rows(database_url, "SELECT * FROM ledger_head")
    database_of(migrated_url).check_writable()
    assert rows(database_url, "SELECT * FROM ledger_head") == before
