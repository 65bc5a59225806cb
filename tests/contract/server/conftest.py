"""The server's fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.server.support import Api, serving
from tests.support.databases import DATABASES, NewLedger


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """An API without a key, whose polls hardly wait."""
    async with serving(database_url) as running:
        yield running


@pytest.fixture
async def waiting_api(database_url: str) -> AsyncIterator[Api]:
    """An API whose polls wait for longer than any test takes: they must be woken."""
    async with serving(database_url, result_wait_timeout_sec=500.0, polling_lease_timeout_sec=1_000.0) as running:
        yield running


@pytest.fixture(scope="module", params=DATABASES)
def shared_ledger(
    request: pytest.FixtureRequest, new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A migrated ledger on each database, for the one API of a module."""
    with new_ledger(request.param, tmp_path_factory.mktemp("shared")) as url:
        yield url
