"""An endpoint that runs, and programs' side of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from rollbook.interception.endpoint import Endpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.close()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client:
        yield client
