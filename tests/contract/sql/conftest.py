"""The recorded ledger on each database, loaded once and then only read."""

from collections.abc import Iterator

import pytest

from rollbook.ledger.urls import POSTGRES, SQLITE
from tests.recorded.recorded import TWO_NIGHTS, record
from tests.support.databases import NewLedger


@pytest.fixture(scope="session")
def recorded_on_sqlite(new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with new_ledger(SQLITE, tmp_path_factory.mktemp("recorded")) as url:
        record(TWO_NIGHTS, url)
        yield url


@pytest.fixture(scope="session")
def recorded_on_postgres(new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with new_ledger(POSTGRES, tmp_path_factory.mktemp("recorded")) as url:
        record(TWO_NIGHTS, url)
        yield url


@pytest.fixture
def recorded_url(database: str, recorded_on_sqlite: str, recorded_on_postgres: str) -> str:
    return recorded_on_postgres if database == POSTGRES else recorded_on_sqlite
