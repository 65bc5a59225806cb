"""Model servers that repeat the key and the URL they were asked with: neither program nor record gets them."""

from __future__ import annotations

import json

import httpx
import pytest

from rollbook.interception.endpoint import Endpoint
from tests.contract.interception.policies import Recording, ask
from tests.support.model_server import ModelServer, Raw, Received, Reply, Say, Status

KEY = "sk-12345"
SECRETS = (KEY, "secretpath123", "QUERYSECRET9")
BASES = ["/echo/secretpath123/v1", "/v1?key=QUERYSECRET9", "/v1/chat/completions?key=QUERYSECRET9"]


def base(server: ModelServer, path: str) -> str:
    return server.url.removesuffix("/v1") + path


def told(received: Received) -> str:
    return f"bad {received.headers['authorization']} at {received.path}"


def refusal(received: Received) -> Reply:
    return Status(401, json.dumps({"error": {"message": told(received)}}).encode())


def slashed(received: Received) -> Reply:
    return Status(404, json.dumps({"error": {"message": told(received)}}).replace("/", "\\/").encode())


def page(received: Received) -> Reply:
    return Status(502, f"<h1>{told(received)}</h1>".encode(), content_type="text/html")


def elsewhere(received: Received) -> Reply:
    return Status(307, b"", headers={"Location": f"http://elsewhere{received.path}", "X-Told": told(received)})


def garbage(received: Received) -> Reply:
    return Raw([told(received).encode()])


def event(received: Received) -> Reply:
    said = json.dumps({"error": {"message": told(received)}})
    return Raw([f"data: {said}\n\n".encode()], content_type="text/event-stream")


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("behaviour", [refusal, slashed, page, elsewhere, garbage, event])
async def test_failed_calls_tell_neither_key_nor_url(
    endpoint: Endpoint, client: httpx.AsyncClient, behaviour: type[Reply], path: str
) -> None:
    policy = Recording()
    async with ModelServer(default=behaviour) as server:
        session = endpoint.open(base(server, path), KEY, policy)
        streamed = behaviour is event
        url = f"{session.base_url}/chat/completions"
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": streamed}
        said = ""
        async with client.stream("POST", url, json=body) as answer:
            try:
                async for piece in answer.aiter_text():
                    said += piece
            except httpx.RemoteProtocolError:
                assert streamed, "only a stream is broken"
        (received,) = server.received
    assert path.partition("?")[0] in received.path
    (call,) = policy.calls
    assert call.error is not None
    heard = f"{answer.headers} {said}"
    assert "[llm_api_key]" in heard
    assert "[chat_completions_url]" in heard
    assert not any(secret in heard + call.error.message for secret in SECRETS)


@pytest.mark.parametrize("path", BASES)
async def test_answers_to_other_requests_tell_neither_where_they_fail(
    endpoint: Endpoint, client: httpx.AsyncClient, path: str
) -> None:
    async with ModelServer(default=refusal) as server:
        answer = await client.get(f"{endpoint.open(base(server, path), KEY, Recording()).base_url}/models")
    assert answer.status_code == 401
    assert "[chat_completions_url]" in answer.text
    assert not any(secret in answer.text for secret in SECRETS)


async def test_paths_of_all_model_servers_stay_in_messages(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    body = b'{"error": {"message": "no POST /v1/chat/completions; see http://docs/v1/chat/completions"}}'
    async with ModelServer(Status(404, body)) as server:
        answer = await ask(client, endpoint.open(f"{server.url}/chat/completions", KEY, Recording()).base_url)
    assert answer.content == body


@pytest.mark.parametrize("streamed", [False, True])
async def test_good_answers_pass_byte_for_byte_whatever_the_model_says(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    text = "asked with sk-12345 at /echo/secretpath123/v1"
    async with ModelServer(Say(text, pieces=1)) as server:
        session = endpoint.open(base(server, BASES[0]), KEY, Recording())
        answer = await ask(client, session.base_url, streamed=streamed)
    assert text in answer.text
