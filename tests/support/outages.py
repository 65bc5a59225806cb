"""A ledger that can be read and not written, on each database, as a full disk or a fail-over leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollbook.ledger.sqlite.engines import database_path
from rollbook.ledger.urls import POSTGRES, parse_url
from tests.support import faults
from tests.support.postgres import execute, shared_server

# Settings of a database reach the sessions that begin after it.
_END_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
"""


@contextmanager
def unwritable(database_url: str) -> Iterator[None]:
    """Every write of this process fails meanwhile, whether it is connected already or not."""
    url = parse_url(database_url)
    if url.get_backend_name() != POSTGRES:
        with faults.disk_full(database_path(url)):
            yield
        return
    execute(shared_server().url(), f'ALTER DATABASE "{url.database}" SET default_transaction_read_only = on')
    execute(database_url, _END_OTHERS)
    try:
        yield
    finally:
        execute(shared_server().url(), f'ALTER DATABASE "{url.database}" RESET default_transaction_read_only')
        execute(database_url, _END_OTHERS)
