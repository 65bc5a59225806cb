"""An endpoint in a thread of its own starts once, serves any loop, and is gone when it is closed."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from rollbook.interception import Response
from rollbook.interception.threaded import THREAD_NAME, EndpointThread
from tests.contract.interception.policies import Recording
from tests.support.model_server import Hang, ModelServer, Say

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LIMIT_SEC = 20


def threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


async def test_whoever_asks_at_the_same_time_gets_the_same_endpoint() -> None:
    thread = EndpointThread()
    found = await asyncio.gather(*(thread.running() for _ in range(5)))
    assert len({running.endpoint.port for running in found}) == 1
    assert threads() == 1
    await thread.close()
    await thread.close()
    assert threads() == 0


async def test_one_who_is_cancelled_while_it_starts_leaves_it_to_the_others() -> None:
    thread = EndpointThread()
    impatient = asyncio.create_task(thread.running())
    patient = asyncio.create_task(thread.running())
    await asyncio.sleep(0)
    cancelled = impatient.cancel()  # not any more, where its thread was quicker than one turn of this loop
    assert (await asyncio.wait_for(patient, LIMIT_SEC)).endpoint.running
    assert impatient.cancelled() is cancelled
    await thread.close()


async def test_closing_while_it_starts_ends_it_too() -> None:
    thread = EndpointThread()
    starting = asyncio.create_task(thread.running())
    await asyncio.sleep(0)
    await asyncio.wait_for(thread.close(), LIMIT_SEC)
    await asyncio.wait([starting])
    assert threads() == 0


async def test_it_starts_anew_after_it_was_closed() -> None:
    thread = EndpointThread()
    first = await thread.running()
    await thread.close()
    second = await thread.running()
    assert (first.endpoint.running, second.endpoint.running) == (False, True)
    with pytest.raises(RuntimeError, match="not running"):
        first.open("http://127.0.0.1:9", None, Recording())
    await thread.close()


async def test_closing_ends_what_is_in_flight_and_then_sessions_have_nothing_left_to_close() -> None:
    policy = Recording()
    async with (
        ModelServer(Say(), default=Hang()) as server,
        httpx.AsyncClient(timeout=LIMIT_SEC, verify=False) as client,
    ):
        thread = EndpointThread()
        session = (await thread.running()).open(server.url, "key", policy)
        assert (await client.post(f"{session.base_url}/chat/completions", json=BODY)).status_code == 200
        waiting = asyncio.create_task(client.post(f"{session.base_url}/chat/completions", json={**BODY, "seed": 1}))
        await asyncio.wait_for(server.wait_for(2), LIMIT_SEC)
        await asyncio.wait_for(thread.close(), LIMIT_SEC)
        assert (await waiting).status_code == 410
        await session.close()
    assert [call.error.kind if call.error else None for call in policy.calls] == [None, "aborted"]


async def test_cancelled_close_ends_its_thread_all_the_same() -> None:
    committing, released = threading.Event(), threading.Event()

    async def slowly(response: Response) -> Response:
        committing.set()
        await asyncio.to_thread(released.wait, LIMIT_SEC)
        return response

    async with ModelServer(Say()) as server, httpx.AsyncClient(timeout=LIMIT_SEC, verify=False) as client:
        thread = EndpointThread()
        session = (await thread.running()).open(server.url, "key", Recording(answered=slowly))
        [worker] = [one for one in threading.enumerate() if one.name == THREAD_NAME]
        call = asyncio.create_task(client.post(f"{session.base_url}/chat/completions", json=BODY))
        await asyncio.to_thread(committing.wait, LIMIT_SEC)
        closing = asyncio.create_task(thread.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        released.set()
        assert (await call).status_code == 200
        await asyncio.to_thread(worker.join, LIMIT_SEC)
    assert not worker.is_alive()
