"""The client that programs really use for tools, as it comes from the index: mcp, in both of its ways to say hello."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from rollbook.interception.endpoint import Endpoint
from tests.contract.interception.test_tool_server import SCHEMA, Desk, forever, opened

if TYPE_CHECKING:  # the package takes a second to import: only the process that runs these tests pays for it
    from mcp import Client

type Mode = Literal["auto", "legacy"]


@asynccontextmanager
async def connected(url: str, mode: Mode) -> AsyncIterator[Client]:
    """The client; ``auto`` tries the protocol that came later first, ``legacy`` begins with `initialize`."""
    made: Any = importlib.import_module("mcp").Client(url, mode=mode)
    async with made as client:
        yield client


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


async def test_client_lists_the_tools_and_calls_them(endpoint: Endpoint, mode: Mode) -> None:
    _, url = opened(endpoint, Desk())
    async with connected(url, mode) as client:
        listed = (await client.list_tools()).tools
        assert [(item.name, item.description) for item in listed] == [("echo", "Say it again."), ("bare", None)]
        assert listed[0].input_schema == SCHEMA
        said = await client.call_tool("echo", {"text": "hällo"})
        failed = await client.call_tool("fly", {})
    assert (said.is_error, said.content[0].model_dump(exclude_none=True)) == (False, {"type": "text", "text": "hällo"})
    assert (failed.is_error, failed.content[0].model_dump()["text"]) == (True, "error: there is no tool 'fly'")


async def test_call_that_the_client_gives_up_ends_its_tool(endpoint: Endpoint, mode: Mode) -> None:
    desk = Desk(forever)
    _, url = opened(endpoint, desk)
    async with connected(url, mode) as client:
        call = asyncio.create_task(client.call_tool("echo", {"text": "x"}))
        await desk.called.wait()
        call.cancel()
        async with asyncio.timeout(10):
            await desk.ended.wait()
        assert len((await client.list_tools()).tools) == 2, "the connection was lost with the call"


async def test_client_hears_that_the_rollout_is_over(endpoint: Endpoint, mode: Mode) -> None:
    desk = Desk(forever)
    session, url = opened(endpoint, desk)
    async with connected(url, mode) as client:
        call = asyncio.create_task(client.call_tool("echo", {"text": "x"}))
        await desk.called.wait()
        await session.close()
        with pytest.raises(importlib.import_module("mcp").MCPError):
            await call
