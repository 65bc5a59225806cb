"""Ledgers on real PostgreSQL, and proxies before them."""

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy.engine import make_url

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from tests.contract.postgres.proxy import Proxy, proxy_before
from tests.support.postgres import fresh_database, shared_server

SECRET_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture(autouse=True)
def secret_key(monkeypatch: pytest.MonkeyPatch, environment_without_settings: None) -> None:
    """Postgres makes no key of its own."""
    monkeypatch.setenv("ROLLBOOK_SECRET_KEY", SECRET_KEY)


@pytest.fixture(scope="session")
def template() -> Iterator[str]:
    """A migrated, empty ledger, to be copied."""
    with fresh_database() as url:
        upgrade(parse_url(url))
        yield url


@pytest.fixture
def database_url(template: str) -> Iterator[str]:
    """An empty ledger of the run's server."""
    with fresh_database(template) as url:
        yield url


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy before that ledger."""
    url = shared_server().url(make_url(database_url).database, tcp=True)
    async with proxy_before(url) as made:
        yield made


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger as a process has it, without anything in between."""
    opened = await Ledger.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def proxied(proxy: Proxy) -> AsyncIterator[Ledger]:
    """The ledger as a process has it, through the proxy."""
    opened = await Ledger.open(proxy.url)
    yield opened
    await opened.close()
