"""A process that is about to start others finds out first whether the ledger can be written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.sqlite.engines import lock_path
from rollbook.ledger.sqlite.locks import FileLock
from rollbook.ledger.sqlite.store import SqliteStore


@pytest.fixture
def store(migrated_url: sa.URL) -> Iterator[SqliteStore]:
    opened = SqliteStore(migrated_url, lock_limit_sec=0.05)
    yield opened
    opened.close()


def test_a_writable_ledger_stays_as_it_was(store: SqliteStore) -> None:
    store.check_writable()
    assert store.run([]).last_position == 0


def test_a_ledger_that_others_hold_is_not_writable_now(store: SqliteStore, migrated_url: sa.URL) -> None:
    lock = FileLock(lock_path(migrated_url))
    lock.acquire(0.0)
    try:
        with pytest.raises(LedgerUnavailable):
            store.check_writable()
    finally:
        lock.close()
    store.check_writable()


def test_a_read_only_ledger_is_not_writable(store: SqliteStore) -> None:
    store.check_writable()
    store._open().execute("PRAGMA query_only=1")
    with pytest.raises(LedgerUnavailable):
        store.check_writable()
