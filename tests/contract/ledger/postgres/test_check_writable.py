"""A process that is about to start others finds out first whether the ledger can be written."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from rollbook.ledger.database import database_of
from rollbook.ledger.refusals import LedgerUnavailable
from tests.support.ledger import rows


def test_a_read_only_database_is_not_writable(migrated_url: sa.URL, database_url: str) -> None:
    rows(database_url, f'ALTER DATABASE "{migrated_url.database}" SET default_transaction_read_only = on')
    with pytest.raises(LedgerUnavailable, match="read-only"):
        database_of(migrated_url).check_writable()


def test_a_server_that_is_away_is_not_writable(migrated_url: sa.URL) -> None:
    away = migrated_url.set(query={}, host="127.0.0.1", port=1)
    with pytest.raises(LedgerUnavailable, match=r"postgresql://127\.0\.0\.1:1/.* cannot be used: .*correct the URL"):
        database_of(away).check_writable()
