"""A process that is about to start others finds out first whether the ledger can be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger.engines import parse_url
from rollbook.ledger.locks import FileLock
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.schema import upgrade
from rollbook.ledger.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    upgrade(parse_url(f"sqlite:///{tmp_path}/ledger.sqlite3"))
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(parse_url(f"sqlite:///{path}"), lock_limit_sec=0.05)
    yield opened
    opened.close()


def test_a_writable_ledger_stays_as_it_was(store: SqliteStore) -> None:
    store.check_writable()
    assert store.run([]).last_position == 0


def test_a_ledger_that_others_hold_is_not_writable_now(store: SqliteStore, path: Path) -> None:
    lock = FileLock(path.with_name(path.name + ".lock"))
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
