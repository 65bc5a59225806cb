"""The chat endpoint over real sockets: what an OpenAI client relies on, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rollbook.cli.demo.endpoint import MAX_BODY_BYTES, ChatEndpoint

QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "What is 1234 × 567?"}]}


@pytest.fixture
async def endpoint() -> AsyncIterator[ChatEndpoint]:
    endpoint = ChatEndpoint(seed=1)
    async with endpoint.serving():
        yield endpoint


@pytest.fixture
async def http(endpoint: ChatEndpoint) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(headers=headers, base_url=endpoint.origin, timeout=30, verify=False) as http:
        yield http


async def ask(endpoint: ChatEndpoint, http: httpx.AsyncClient, rollout_id: str = "r-1") -> Any:
    answer = await http.post(f"{endpoint.base_url(rollout_id)}/chat/completions", json=QUESTION)
    assert answer.status_code == 200
    return answer.json()


async def test_completion_has_the_shape_that_clients_read(endpoint: ChatEndpoint, http: httpx.AsyncClient) -> None:
    completion = await ask(endpoint, http)
    assert completion["object"] == "chat.completion"
    (choice,) = completion["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert "Answer: " in choice["message"]["content"]
    usage = completion["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


async def test_each_rollout_and_each_of_its_calls_is_a_draw_of_its_own() -> None:
    async def contents() -> list[str]:
        endpoint = ChatEndpoint(seed=1)
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with endpoint.serving(), httpx.AsyncClient(headers=headers, timeout=30, verify=False) as http:
            first = await asyncio.gather(*(ask(endpoint, http, f"r-{number}") for number in range(20)))
            second = await asyncio.gather(*(ask(endpoint, http, f"r-{number}") for number in range(20)))
        return [completion["choices"][0]["message"]["content"] for completion in (*first, *second)]

    said = await contents()
    assert len(set(said[:20])) > 1
    assert said[:20] != said[20:]
    assert said == await contents(), "the same seed must give the same draws, in whatever order they are asked for"


async def test_one_connection_serves_many_requests(endpoint: ChatEndpoint) -> None:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(
        headers=headers, limits=httpx.Limits(max_connections=1), timeout=30, verify=False
    ) as http:
        streams = set()
        for _ in range(3):
            answer = await http.post(f"{endpoint.base_url('r')}/chat/completions", json=QUESTION)
            streams.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(streams) == 1


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic demo"])
async def test_wrong_key_is_refused(endpoint: ChatEndpoint, authorization: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": authorization}) as http:
        answer = await http.post(f"{endpoint.base_url('r')}/chat/completions", json=QUESTION)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("method, path", [("GET", "/rollouts/r/v1/chat/completions"), ("POST", "/v1/models")])
async def test_unknown_route_is_not_found(http: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path, json=QUESTION)
    assert answer.status_code == 404
    assert "POST /rollouts/ID/v1/chat/completions" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"messages": 3}', b'{"messages": [{"role": "user"}]}'])
async def test_bad_body_is_refused_and_the_connection_lives_on(
    endpoint: ChatEndpoint, http: httpx.AsyncClient, body: bytes
) -> None:
    answer = await http.post(f"{endpoint.base_url('r')}/chat/completions", content=body)
    assert answer.status_code == 400
    await ask(endpoint, http)


async def test_oversized_body_is_refused(endpoint: ChatEndpoint) -> None:
    host, port = endpoint.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
    head = await asyncio.wait_for(reader.readline(), 30)
    assert head == b"HTTP/1.1 413 Content Too Large\r\n"
    await asyncio.wait_for(reader.read(), 30)  # to its end: the endpoint closes, since it read no body
    writer.close()


async def test_end_closes_connections_in_the_middle_of_a_request() -> None:
    endpoint = ChatEndpoint(seed=1)
    async with endpoint.serving():
        host, port = endpoint.origin.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
        await asyncio.wait_for(reader.readexactly(int(head.rpartition("content-length: ")[2])), 30)
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n")
        await writer.drain()
    with contextlib.suppress(ConnectionResetError):  # what is sent for bytes that nobody had read yet
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
