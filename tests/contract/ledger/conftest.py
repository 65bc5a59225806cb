"""The databases that the ledger's contract holds on, and ledgers opened on them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from tests.support.ledger import Writing, writing

DATABASES = ("sqlite",)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for a ledger; nothing is there yet."""
    assert request.param == "sqlite"
    return f"sqlite:///{tmp_path}/ledger.sqlite3"


@pytest.fixture
def migrated_url(database_url: str) -> sa.URL:
    """An empty ledger."""
    url = parse_url(database_url)
    upgrade(url)
    return url


@pytest.fixture
def writer(database_url: str) -> Iterator[Writing]:
    """A migrated ledger's store, written by the test's own thread with a clock that the test moves."""
    with writing(database_url) as made:
        yield made


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """A ledger as a process has it: group commit, reader and feed."""
    opened = await Ledger.open(database_url)
    yield opened
    await opened.close()
