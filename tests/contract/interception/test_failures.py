"""What goes wrong upstream: the program gets it as it was, and the record names the true cause."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from rollbook.interception.endpoint import Endpoint
from rollbook.traces.calls import CallError
from tests.contract.interception.policies import Recording, ask, chat, gather_lines
from tests.support.model_server import Die, Hang, ModelServer, Raw, Say, Status

KEY = "sk-the-rollouts-own-key"


def error_of(policy: Recording) -> CallError:
    (call,) = policy.calls
    assert call.error is not None
    return call.error


async def test_error_answer_passes_with_its_status_body_and_retry_after(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    limited = Status(429, b'{"error": {"message": "slow down"}}', headers={"Retry-After": "7", "X-Limit": "3"})
    policy = Recording()
    async with ModelServer(limited, Say()) as server:
        session = endpoint.open(server.url, KEY, policy)
        refused = await ask(client, session.base_url)
        answered = await ask(client, session.base_url)
    assert (refused.status_code, refused.content) == (429, limited.body)
    assert (refused.headers["retry-after"], refused.headers["x-limit"]) == ("7", "3")
    assert answered.status_code == 200
    failed, succeeded = policy.calls
    assert failed.error == CallError("http", "HTTP 429: slow down", 429)
    assert succeeded.error is None


async def test_error_in_place_of_a_stream_passes_too(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Status(503, b"overloaded", content_type="text/plain")) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert (answer.status_code, answer.text) == (503, "overloaded")
    assert error_of(policy) == CallError("http", "HTTP 503: overloaded", 503)


async def test_key_that_a_server_repeats_reaches_neither_program_nor_record(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    policy = Recording()
    body = f'{{"error": {{"message": "wrong key {KEY}"}}}}'.encode()
    async with ModelServer(Status(401, body)) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url)
    assert (answer.status_code, answer.json()) == (401, {"error": {"message": "wrong key [llm_api_key]"}})
    assert KEY not in error_of(policy).message


_WRONG_KEY = f'{{"error": {{"message": "wrong key {KEY}"}}}}'.encode()
_EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    "answered",
    [
        Raw([_WRONG_KEY]),
        Raw([_WRONG_KEY[:-2]], cut=True),
        Raw([b"data: " + _WRONG_KEY + b"\n\n", b"data: [DONE]\n\n"], content_type=_EVENTS),
        Raw([b"data: wrong key " + KEY.encode() + b"\n\n"], content_type=_EVENTS),
        Raw([b": wrong key " + KEY.encode() + b"\n\n"], content_type=_EVENTS),
        Raw([b"data: " + _WRONG_KEY[:-2]], content_type=_EVENTS),
    ],
    ids=["plain", "cut", "event", "no json", "comment", "half an event"],
)
async def test_key_that_a_server_repeats_with_200_reaches_neither_program_nor_record(
    endpoint: Endpoint, client: httpx.AsyncClient, answered: Raw
) -> None:
    policy = Recording()
    said = bytearray()
    async with ModelServer(answered) as server:
        session = endpoint.open(server.url, KEY, policy)
        body = chat(streamed=answered.content_type == _EVENTS)
        async with client.stream("POST", f"{session.base_url}/chat/completions", json=body) as answer:
            with contextlib.suppress(httpx.RemoteProtocolError):
                async for piece in answer.aiter_raw():
                    said += piece
    assert b"wrong key [llm_api_key]" in said
    assert KEY not in said.decode() + error_of(policy).message


async def test_server_that_is_not_there_is_a_502(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        policy = Recording()
        session = endpoint.open(f"http://127.0.0.1:{taken.getsockname()[1]}/secret-path/v1", KEY, policy)
        answer = await ask(client, session.base_url)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "upstream_connect"
    assert error_of(policy).kind == "connect"
    assert "secret-path" not in answer.text + error_of(policy).message


async def test_host_that_has_no_address_is_a_502(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    answer = await ask(client, endpoint.open("http://nowhere.invalid/v1", KEY, policy).base_url)
    assert answer.status_code == 502
    assert error_of(policy).kind == "connect"


async def test_server_that_hangs_up_before_it_answers_is_a_502(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Die()) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert answer.status_code == 502
    assert error_of(policy).kind == "connect"


async def test_broken_stream_is_broken_for_the_program(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Die(after=3, say=Say("a long text", pieces=5))) as server:
        session = endpoint.open(server.url, KEY, policy)
        url = f"{session.base_url}/chat/completions"
        got: list[str] = []
        async with client.stream("POST", url, json=chat(streamed=True)) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                await gather_lines(answer, got)
    assert sum(line.startswith("data: ") for line in got) == 3  # what came has been passed on
    assert "[DONE]" not in "".join(got)
    assert error_of(policy).kind == "broken_stream"
    assert policy.calls[0].first_chunk_at is not None


async def test_broken_plain_answer_is_broken_for_the_program(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Die(after=1)) as server:
        session = endpoint.open(server.url, KEY, policy)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, session.base_url)
    assert error_of(policy).kind == "broken_stream"


@pytest.mark.parametrize("end", [b"", b"data: [DONE"])
async def test_stream_that_ends_without_its_end_is_broken(
    endpoint: Endpoint, client: httpx.AsyncClient, end: bytes
) -> None:
    policy = Recording()
    half = b'data: {"choices": [{"index": 0, "delta": {"content": "ha"}}]}\n\n'
    async with ModelServer(Raw([half, end] if end else [half], content_type="text/event-stream")) as server:
        session = endpoint.open(server.url, KEY, policy)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, session.base_url, streamed=True)
    assert error_of(policy).kind == "broken_stream"


async def test_stream_without_done_but_with_a_finish_reason_is_whole(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    policy = Recording()
    events = b'data: {"choices": [{"index": 0, "delta": {"content": "all"}, "finish_reason": "stop"}]}\n\n'
    async with ModelServer(Raw([events], content_type="text/event-stream")) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert answer.content == events
    assert policy.responses[0].message["content"] == "all"


async def test_error_event_in_a_stream_passes_and_is_recorded(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    events = b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n'
    async with ModelServer(Raw([events], content_type="text/event-stream")) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert answer.content == events
    assert error_of(policy) == CallError("broken_stream", "the model server broke off: out of memory")


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": 1}]}',
        b'{"choices": [7]}',
        b'{"error": {"message": "no"}}',
        b'{"choices": [{"message": {"content": NaN}}]}',
        b"[" * 100_000,
    ],
)
async def test_garbage_passes_as_it_is_and_is_recorded_as_garbage(
    endpoint: Endpoint, client: httpx.AsyncClient, body: bytes
) -> None:
    policy = Recording()
    async with ModelServer(Status(200, body)) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url)
    assert (answer.status_code, answer.content) == (200, body)
    assert error_of(policy).kind == "garbage"


@pytest.mark.parametrize(
    "events", [b"data: garbage\n\ndata: [DONE]\n\n", b"data: {}\n\ndata: [DONE]\n\n", b"data: [DONE]\n\n"]
)
async def test_garbage_in_a_stream_passes_as_it_is(
    endpoint: Endpoint, client: httpx.AsyncClient, events: bytes
) -> None:
    policy = Recording()
    async with ModelServer(Raw([events], content_type="text/event-stream")) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert answer.content == events
    assert error_of(policy).kind == "garbage"


async def test_plain_answer_to_a_request_for_a_stream_is_taken(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    body = b'{"choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}]}'
    async with ModelServer(Status(200, body)) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=True)
    assert answer.content == body
    assert policy.responses[0].message == {"role": "assistant", "content": "plain"}


async def test_bytes_that_are_not_http_are_an_error(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"+OK POP3 server ready\r\n")
        await writer.drain()
        writer.close()

    policy = Recording()
    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await ask(client, endpoint.open(f"http://127.0.0.1:{port}", KEY, policy).base_url)
    assert answer.status_code == 502
    assert "not HTTP" in error_of(policy).message


@pytest.mark.parametrize("streamed", [False, True])
async def test_silence_beyond_the_sessions_limit_is_a_timeout(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    policy = Recording()
    async with ModelServer(Hang()) as server:
        session = endpoint.open(server.url, KEY, policy, read_timeout_sec=0.05)
        answer = await ask(client, session.base_url, streamed=streamed)
        assert answer.status_code == 504
        async with asyncio.timeout(10):
            await server.received[0].hung_up.wait()
    assert error_of(policy) == CallError("timeout", "the model server was silent for 0.05 s")


async def test_silence_in_the_middle_of_a_stream_breaks_it(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Hang(after=2)) as server:
        session = endpoint.open(server.url, KEY, policy, read_timeout_sec=0.05)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, session.base_url, streamed=True)
    assert error_of(policy).kind == "timeout"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": [1]}',
        b'{"messages": [], "tools": 1}',
        b'{"messages": [], "x": NaN}',
    ],
)
async def test_body_that_is_no_chat_request_is_a_400_and_unrecorded(
    endpoint: Endpoint, client: httpx.AsyncClient, body: bytes
) -> None:
    policy = Recording()
    async with ModelServer() as server:
        session = endpoint.open(server.url, KEY, policy)
        answer = await client.post(f"{session.base_url}/chat/completions", content=body)
        assert not server.received
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not policy.requests and not policy.calls


@pytest.mark.parametrize("announced", [True, False])
async def test_body_over_the_limit_is_a_413(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr("rollbook.interception.app.BODY_MAX_BYTES", 1000)
    policy = Recording()

    async with ModelServer(Say()) as server:
        url = f"{endpoint.open(server.url, KEY, policy).base_url}/chat/completions"
        big = b'{"messages": []' + b" " * 2000 + b"}"

        async def pieces() -> AsyncIterator[bytes]:
            yield big[:500]
            yield big[500:]

        answer = await client.post(url, content=big if announced else pieces())
        assert not server.received
    assert answer.status_code == 413
    assert not policy.requests


async def test_compressed_answer_is_understood(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    body = b'{"choices": [{"message": {"content": "small"}}]}'
    policy = Recording()
    async with ModelServer(Status(200, gzip.compress(body), headers={"Content-Encoding": "gzip"})) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url)
    assert answer.content == body
    assert policy.responses[0].message["content"] == "small"


async def test_server_that_takes_no_stream_options_is_asked_without_them(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    refusal = Status(422, b'{"detail": "extra fields not permitted: stream_options"}')
    policy = Recording()
    async with ModelServer(refusal, Say("first"), Say("second")) as server:
        session = endpoint.open(server.url, KEY, policy)
        for text in ("one", "two"):
            assert (await ask(client, session.base_url, text, streamed=True)).status_code == 200
        assert ["stream_options" in received.json for received in server.received] == [True, False, False]
    assert [response.message["content"] for response in policy.responses] == ["first", "second"]
    assert not policy.failures


async def test_connection_that_closed_while_it_waited_is_replaced(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request and takes a second one without an answer, as a server that times out just then."""
        nonlocal served
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            served += 1
            if served == 2:
                break
            body = b'{"choices": [{"message": {"content": "again"}}]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    policy = Recording()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        session = endpoint.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", KEY, policy)
        for text in ("one", "two"):
            assert (await ask(client, session.base_url, text)).status_code == 200
        await session.close()
        await endpoint.close()
    assert served == 3
    assert not policy.failures
