"""A ledger that can be read and not written, on each database: writes fail at once, or hang without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import pytest

from rollbook.ledger.postgres import store
from rollbook.ledger.postgres.blocking import loop_thread
from rollbook.ledger.postgres.store import WRITE_LOCK
from rollbook.ledger.sqlite.engines import database_path, lock_path
from rollbook.ledger.sqlite.locks import FileLock
from rollbook.ledger.urls import POSTGRES, parse_url
from tests.support import faults
from tests.support.postgres import execute, shared_server

LOCK_LIMIT_SEC = 10.0
PATIENCE_SEC = 0.2

# Settings of a database reach the sessions that begin after it.
_END_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
"""


@contextmanager
def unwritable(database_url: str) -> Iterator[None]:
    """Every write of this process fails meanwhile, whether it is connected already or not, as on a full disk or after
    a fail-over."""
    url = parse_url(database_url)
    if url.get_backend_name() != POSTGRES:
        with faults.disk_full(database_path(url)):
            yield
        return
    execute(shared_server().url(), f'ALTER DATABASE "{url.database}" SET default_transaction_read_only = on')
    execute(database_url, _END_OTHERS)
    try:
        with pytest.MonkeyPatch.context() as patience:
            # It ends no sooner for being waited for.
            patience.setattr(store, "RETRY_SEC", PATIENCE_SEC)
            yield
    finally:
        execute(shared_server().url(), f'ALTER DATABASE "{url.database}" RESET default_transaction_read_only')
        execute(database_url, _END_OTHERS)


@contextmanager
def hanging(database_url: str) -> Iterator[None]:
    """Every write of everybody waits meanwhile: some process has its turn and does not end it."""
    url = parse_url(database_url)
    if url.get_backend_name() != POSTGRES:
        lock = FileLock(lock_path(url))
        lock.acquire(LOCK_LIMIT_SEC)
        try:
            yield
        finally:
            lock.close()
        return
    with loop_thread() as thread:
        holder = thread.run(asyncpg.connect(database_url))
        thread.run(holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})"))
        try:
            yield
        finally:
            thread.run(holder.close())
