"""A client whose calls were cancelled, at any moment, works on; real sockets."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import pytest

from rollbook_client import RolloutClient, RolloutStatus
from rollbook_client.connections import BorrowedConnections, Connections, OwnedConnections
from tests.unit.client.tiny_server import WAIT_SEC, TinyServer, tiny_server

type Kind = Literal["owned", "borrowed"]
both_kinds = pytest.mark.parametrize("kind", ["owned", "borrowed"])

CHAT_URL = "http://chat.test/v1"


@asynccontextmanager
async def _client(kind: Kind, server: TinyServer, *, limit: int = 10) -> AsyncIterator[RolloutClient]:
    """A client with its own connections, or over an httpx client of at most `limit` connections."""
    if kind == "owned":
        async with RolloutClient(url=server.url) as client:
            yield client
        return
    limits = httpx.Limits(max_connections=limit)
    async with httpx.AsyncClient(limits=limits, timeout=WAIT_SEC, verify=False) as http_client:
        yield RolloutClient(url=server.url, http_client=http_client)


async def _ended(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(WAIT_SEC):
        return await asyncio.gather(*tasks, return_exceptions=True)


@both_kinds
async def test_a_client_that_cancelled_200_calls_in_flight_can_still_be_used(kind: Kind) -> None:
    choose = random.Random(7)
    async with tiny_server() as server, _client(kind, server) as client:
        calls: list[Callable[[int], Coroutine[Any, Any, Any]]] = [
            lambda n: client.run_rollout([], CHAT_URL, f"park-{n}"),
            lambda n: client.run_rollout([], CHAT_URL, f"r-{n}"),
            lambda _: client.health(),
        ]
        for _ in range(2):
            tasks = [asyncio.create_task(choose.choice(calls)(n)) for n in range(200)]
            choose.shuffle(tasks)
            for task in tasks:
                for _ in range(choose.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            await _ended(tasks)
        # As many at once as the pool has connections: a single one that were lost would be missed.
        outcomes = await _ended([asyncio.create_task(client.run_rollout([], CHAT_URL, f"new-{n}")) for n in range(10)])
        assert [outcome.status for outcome in outcomes] == [RolloutStatus.SUCCESS] * 10


@both_kinds
async def test_a_call_may_be_cancelled_at_any_step_of_it(kind: Kind) -> None:
    async with tiny_server() as server, _client(kind, server, limit=1) as client:
        await _cancel_at_every_step(lambda: _start(client.health()), then=client.health)


@both_kinds
async def test_a_call_over_a_connection_just_made_may_be_cancelled_at_any_step(kind: Kind) -> None:
    async with tiny_server() as server, _client(kind, server, limit=1) as client:
        server.close_after_answer = True
        await _cancel_at_every_step(lambda: _start(client.health()), then=client.health)


async def test_a_call_that_waits_for_a_borrowed_connection_may_be_cancelled_at_any_step() -> None:
    async with tiny_server() as server, _client("borrowed", server, limit=1) as client:

        def start_behind_another() -> asyncio.Task[Any]:
            _start(client.health(), forget=True)
            return _start(client.health())

        await _cancel_at_every_step(start_behind_another, then=client.health)


async def _cancel_at_every_step(start: Callable[[], asyncio.Task[Any]], *, then: Callable[[], Awaitable[Any]]) -> None:
    """Cancel a call after no loop step, the next after one, until one ends by itself; `then` must work after each."""
    for steps in range(10_000):
        task = start()
        for _ in range(steps):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        await _ended([task])
        async with asyncio.timeout(WAIT_SEC):
            await then()
        if finished:
            assert steps > 3, "the call ended too early to have been cancelled anywhere"
            return
    pytest.fail("the call never ended by itself")


_forgotten: set[asyncio.Task[Any]] = set()


def _start(call: Coroutine[Any, Any, Any], *, forget: bool = False) -> asyncio.Task[Any]:
    task = asyncio.create_task(call)
    if forget:
        _forgotten.add(task)
        task.add_done_callback(_forgotten.discard)
    return task


@both_kinds
async def test_a_cancelled_poll_leaves_the_server_at_once(kind: Kind) -> None:
    async with tiny_server() as server, _client(kind, server, limit=100) as client:
        handles = [await client.run_rollout_async([], CHAT_URL, f"park-{n}") for n in range(20)]
        await server.wait_for(parked=20)
        for handle in handles:
            handle.cancel()
        await server.wait_for(parked=0)


async def test_own_connections_let_no_call_wait_for_parked_ones() -> None:
    async with tiny_server() as server, _client("owned", server) as client:
        handles = [await client.run_rollout_async([], CHAT_URL, f"park-{n}") for n in range(150)]
        await server.wait_for(parked=150)
        assert (await client.run_rollout([], CHAT_URL, "r")).status is RolloutStatus.SUCCESS
        server.release()
        assert {outcome.status for outcome in await asyncio.gather(*handles)} == {RolloutStatus.SUCCESS}


async def test_own_connections_are_used_again() -> None:
    async with tiny_server() as server, _client("owned", server) as client:
        for n in range(5):
            await client.run_rollout([], CHAT_URL, f"r-{n}")
        assert server.connections_made == 1


@both_kinds
async def test_a_connection_the_server_closed_is_replaced(kind: Kind) -> None:
    async with tiny_server() as server, _client(kind, server) as client:
        server.close_after_answer = True
        for n in range(3):
            await client.health()
            await server.wait_for(open_connections=0)
            assert server.connections_made == n + 1


async def test_closing_ends_parked_polls_with_an_error_and_closes_every_socket() -> None:
    async with tiny_server() as server:
        client = RolloutClient(url=server.url)
        handles = [await client.run_rollout_async([], CHAT_URL, f"park-{n}") for n in range(5)]
        await server.wait_for(parked=5)
        await client.aclose()
        await server.wait_for(open_connections=0)
        for handle in handles:
            async with asyncio.timeout(WAIT_SEC):
                with pytest.raises(RuntimeError, match="closed"):
                    await handle
        with pytest.raises(RuntimeError, match="make a new one"):
            await client.health()


async def test_closing_twice_is_harmless() -> None:
    async with tiny_server() as server:
        client = RolloutClient(url=server.url)
        await client.health()
        await client.aclose()
        await client.aclose()


def _own() -> Connections:
    return OwnedConnections()


def _borrowed() -> Connections:
    return BorrowedConnections(httpx.AsyncClient())


@pytest.mark.parametrize("make", [_own, _borrowed])
async def test_an_unreachable_server_is_a_connect_error_each_time(make: Callable[[], Connections]) -> None:
    async with tiny_server() as server:
        url = server.url
    connections = make()
    for _ in range(3):
        with pytest.raises(httpx.ConnectError):
            await connections.request("GET", url, headers={})
    await connections.aclose()
