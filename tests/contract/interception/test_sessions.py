"""A session's beginning and end: secrets, what close ends and records, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import socket

import httpx
import pytest

from rollbook.interception import Request, Response
from rollbook.interception.endpoint import Endpoint, close_shared_endpoint, shared_endpoint
from tests.contract.interception.policies import Recording, ask, chat, until_waiting
from tests.support.model_server import Die, Hang, ModelServer, Raw, Say, Status

KEY = "sk-the-rollouts-own-key"
LONG_SEC = 20


@pytest.mark.parametrize("path", ["/s/unknown/v1/chat/completions", "/v1/chat/completions", "/", "/s/", "/s"])
async def test_without_a_secret_nothing_passes(endpoint: Endpoint, client: httpx.AsyncClient, path: str) -> None:
    policy = Recording()
    async with ModelServer() as server:
        endpoint.open(server.url, KEY, policy)
        answer = await client.post(f"http://127.0.0.1:{endpoint.port}{path}", json=chat())
        assert not server.received
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "unknown_secret")


async def test_secrets_are_long_and_never_the_same(endpoint: Endpoint) -> None:
    secrets = {endpoint.open("http://127.0.0.1:1/v1", None, Recording()).secret for _ in range(50)}
    assert len(secrets) == 50
    assert min(map(len, secrets)) >= 43  # 32 bytes


@pytest.mark.parametrize("url", ["", "ftp://host/x", "host/v1", "http://", "http:///v1", "http://[host/x"])
async def test_url_that_is_none_is_refused(endpoint: Endpoint, url: str) -> None:
    with pytest.raises(ValueError, match="chat_completions_url"):
        endpoint.open(url, KEY, Recording())


async def test_key_that_no_header_can_carry_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match="api_key"):
        endpoint.open("http://127.0.0.1:1", "key\r\nX-Evil: 1", Recording())


@pytest.mark.parametrize("streamed", [False, True])
async def test_close_ends_calls_in_flight_and_records_them_as_aborted(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    policy = Recording()
    async with ModelServer(default=Hang()) as server:
        session = endpoint.open(server.url, KEY, policy)
        tasks = [
            asyncio.create_task(ask(client, session.base_url, f"{index}", streamed=streamed)) for index in range(3)
        ]
        await server.wait_for(3)
        await session.close()
        assert [call.error.kind for call in policy.failures if call.error] == ["aborted"] * 3
        answers = [await task for task in tasks]
        async with asyncio.timeout(10):
            for received in server.received:
                await received.hung_up.wait()
    assert [answer.status_code for answer in answers] == [410] * 3
    assert answers[0].json()["error"]["type"] == "rollout_over"


async def test_close_breaks_streams_that_have_begun(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Hang(after=2)) as server:
        session = endpoint.open(server.url, KEY, policy)
        async with client.stream("POST", f"{session.base_url}/chat/completions", json=chat(streamed=True)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await session.close()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(rest async for rest in lines if "never" in rest)
    assert policy.failure == "aborted"


async def test_close_ends_what_is_no_call_too(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(Hang(say=Say())) as server:
        session = endpoint.open(server.url, KEY, Recording())
        task = asyncio.create_task(client.get(f"{session.base_url}/models"))
        received = await server.wait_for(1)
        await session.close()
        assert (await task).status_code == 410
        async with asyncio.timeout(10):
            await received.hung_up.wait()


async def test_later_calls_hear_410(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer() as server:
        session = endpoint.open(server.url, KEY, policy)
        await session.close()
        await session.close()
        for method, url in (("POST", f"{session.base_url}/chat/completions"), ("GET", f"{session.base_url}/models")):
            answer = await client.request(method, url, json=chat())
            assert (answer.status_code, answer.json()["error"]["type"]) == (410, "rollout_over")
        assert not server.received
    assert not policy.requests


async def test_close_waits_for_a_turn_that_is_being_committed(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    committing, commit = asyncio.Event(), asyncio.Event()

    async def slowly(response: Response) -> Response:
        committing.set()
        await commit.wait()
        return response

    policy = Recording(answered=slowly)
    async with ModelServer(Say("kept")) as server:
        session = endpoint.open(server.url, KEY, policy)
        task = asyncio.create_task(ask(client, session.base_url))
        await committing.wait()
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        assert not closing.done()
        commit.set()
        await closing
        assert (await task).json()["choices"][0]["message"]["content"] == "kept"
    assert not policy.failures


async def test_cancelled_close_has_ended_everything_all_the_same(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Hang()) as server:
        session = endpoint.open(server.url, KEY, policy)
        task = asyncio.create_task(ask(client, session.base_url))
        received = await server.wait_for(1)
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        assert (await policy.recorded(1)).error is not None
        assert (await task).status_code == 410
        async with asyncio.timeout(10):
            await received.hung_up.wait()


@pytest.mark.parametrize("end", ["in time", "late"])
async def test_policy_that_ignores_its_cancellation_has_nothing_sent_any_more(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("rollbook.interception.session.COMMIT_SEC", 0.05 if end == "late" else LONG_SEC)
    monkeypatch.setattr("rollbook.interception.session.END_SEC", 0.05)
    deciding, decided = asyncio.Event(), asyncio.Event()

    async def deaf(request: Request) -> Request:
        deciding.set()
        while not decided.is_set():
            try:
                await decided.wait()
            except asyncio.CancelledError:
                continue
        return request

    policy = Recording(before=deaf)
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, policy)
        task = asyncio.create_task(ask(client, session.base_url))
        await deciding.wait()
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        if end == "late":
            await asyncio.wait_for(closing, LONG_SEC)
        decided.set()
        await asyncio.wait_for(closing, LONG_SEC)
        assert (await task).status_code == 410
        assert (await policy.recorded(1)).error is not None
        assert policy.failure == "aborted"
        assert not server.received


async def test_closed_sessions_leave_the_others_alone(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    gate = asyncio.Event()
    async with ModelServer(Say("alive", gate=gate), Hang()) as server:
        kept, ended = (endpoint.open(server.url, KEY, Recording()) for _ in range(2))
        task = asyncio.create_task(ask(client, kept.base_url))
        await server.wait_for(1)
        other = asyncio.create_task(ask(client, ended.base_url))
        await server.wait_for(2)
        await ended.close()
        gate.set()
        assert (await task).status_code == 200
        assert (await other).status_code == 410


async def test_head_without_an_end_is_cut_off(endpoint: Endpoint) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-long: " + b"x" * 200_000)
    async with asyncio.timeout(10):
        (outcome,) = await asyncio.gather(reader.read(), return_exceptions=True)
    assert outcome == b"" or isinstance(outcome, ConnectionError)
    writer.close()


async def test_small_pieces_are_sent_at_once(endpoint: Endpoint) -> None:
    """asyncio turns Nagle's algorithm off only on sockets that say that they are TCP; 40 ms a piece are at stake."""
    _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(b"GET / HTTP/1.1\r\n")
    async with asyncio.timeout(10):
        while not (connections := endpoint._server._state.connections):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    for connection in connections:
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()


async def test_slow_program_slows_the_model_server_down(endpoint: Endpoint) -> None:
    """Some megabytes lie in buffers on the way; more than that is not asked for."""
    sent = 0
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 60_000 + b'"}}]}\n\n'
    stalled = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(1000):
            writer.write(event)
            try:
                async with asyncio.timeout(1):
                    await writer.drain()
            except TimeoutError:
                stalled.set()
                break
            sent += 1
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = endpoint.open(f"http://127.0.0.1:{port}/v1", KEY, Recording())
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client:
            url = f"{session.base_url}/chat/completions"
            async with client.stream("POST", url, json=chat(streamed=True)) as answer:
                assert answer.status_code == 200
                async with asyncio.timeout(30):
                    await stalled.wait()
        await session.close()
    assert sent < 500


async def test_nothing_of_a_call_is_logged(
    endpoint: Endpoint, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ModelServer(Say(), Status(401), Die(), Raw([b"?"]), Die(after=2)) as server:
        session = endpoint.open(f"{server.url}/capability-of-the-rollout", KEY, Recording())
        for index in range(5):
            url = f"{session.base_url}/chat/completions"
            try:
                await client.post(
                    url, json=chat(f"{index}", streamed=index == 4), headers={"Authorization": "Bearer own"}
                )
            except httpx.RemoteProtocolError:
                assert index in (2, 4)
        await session.close()
    ours = [record for record in caplog.records if record.name.startswith(("rollbook", "uvicorn"))]
    said = "\n".join(record.getMessage() for record in ours)
    assert not any(secret in said for secret in (KEY, "capability-of-the-rollout", session.secret, "Bearer own"))
    assert not [record for record in ours if record.levelno >= logging.WARNING]


async def test_closed_endpoint_leaves_no_task_and_no_connection(client: httpx.AsyncClient) -> None:
    before = asyncio.all_tasks()
    endpoint = Endpoint()
    await endpoint.start()
    policy = Recording()
    async with ModelServer(default=Hang(after=1)) as server:
        session = endpoint.open(server.url, KEY, policy)
        tasks = [asyncio.create_task(ask(client, session.base_url, f"{index}", streamed=True)) for index in range(4)]
        await server.wait_for(4)
        await until_waiting(session, 4)
        await endpoint.close()
        await endpoint.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(10):
            for received in server.received:
                await received.hung_up.wait()
        with pytest.raises(httpx.ConnectError):
            await ask(client, session.base_url)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    assert len(policy.failures) == 4
    with pytest.raises(RuntimeError, match="start"):
        endpoint.open("http://127.0.0.1:1", None, policy)


async def test_cancelled_close_of_a_shared_endpoint_that_starts_leaves_it_to_those_who_wait() -> None:
    waiting = asyncio.create_task(shared_endpoint())
    await asyncio.sleep(0)
    closing = asyncio.create_task(close_shared_endpoint())
    await asyncio.sleep(0)
    closing.cancel()
    endpoint = await waiting
    assert closing.cancelled() is endpoint.running
    await endpoint.close()


async def test_shared_endpoint_is_one_until_it_is_closed() -> None:
    try:
        first, second = await asyncio.gather(shared_endpoint(), shared_endpoint())
        assert first is second
        await first.close()
        third = await shared_endpoint()
        assert third is not first
        assert third.running
    finally:
        await close_shared_endpoint()
    assert not third.running
