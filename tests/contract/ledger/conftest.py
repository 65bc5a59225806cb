"""Ledgers opened on each database; `database` and the URLs come from the tests' outermost conftest."""

from collections.abc import AsyncIterator, Iterator

import pytest
import sqlalchemy as sa

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.urls import parse_url
from tests.support.ledger import Writing, writing


@pytest.fixture
def migrated_url(database_url: str) -> sa.URL:
    """An empty ledger."""
    return parse_url(database_url)


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
