"""A call that goes well: what goes upstream, what comes back, what is recorded; plain and in chunks."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from rollbook.interception import Request
from rollbook.interception.endpoint import Endpoint, close_shared_endpoint
from rollbook.traces.calls import CallTokens, Usage
from tests.architecture.sources import ROOT
from tests.contract.interception.policies import Recording, ask, chat
from tests.support.model_server import ModelServer, Raw, Say, completion, stream_chunks

KEY = "sk-the-rollouts-own-key"
TOOL_CALL = ("call_1", "look", '{"where": "here"}')


def data_of(answer: httpx.Response) -> list[bytes]:
    return [line.removeprefix("data: ").encode() for line in answer.text.split("\n\n") if line]


async def test_plain_answer_arrives_byte_by_byte_and_is_recorded(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    say = Say(
        "four", usage={"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    )
    policy = Recording()
    async with ModelServer(say) as server:
        session = endpoint.open(server.url, KEY, policy)
        answer = await ask(client, session.base_url, "2+2?", temperature=0.5)
    assert answer.status_code == 200
    assert answer.content == json.dumps(completion(say, chat("2+2?"))).encode()
    assert policy.requests == [
        Request([{"role": "user", "content": "2+2?"}], None, "policy", {"temperature": 0.5}, streamed=False)
    ]
    (response,), (call,) = policy.responses, policy.calls
    assert response.message == {"role": "assistant", "content": "four"}
    assert response.finish_reason == call.finish_reason == "stop"
    assert response.usage == call.usage == Usage(input_tokens=11, output_tokens=2, cached_input_tokens=8)
    assert (call.number, call.model, call.streamed, call.error) == (0, "policy", False, None)
    assert call.started_at <= call.ended_at
    assert call.first_chunk_at is None


async def test_streamed_answer_arrives_event_by_event_and_is_put_together(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    say = Say("some text", reasoning="let me see", tool_calls=[TOOL_CALL], pieces=4)
    policy = Recording()
    async with ModelServer(say) as server:
        session = endpoint.open(server.url, KEY, policy)
        answer = await ask(client, session.base_url, streamed=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    # The server counts tokens for us; a program that did not ask for that does not see it.
    assert data_of(answer) == list(stream_chunks(say, chat(streamed=True)))
    (response,), (call,) = policy.responses, policy.calls
    assert response.message == {
        "role": "assistant",
        "content": "some text",
        "reasoning_content": "let me see",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"where": "here"}'}}
        ],
    }
    assert response.usage == Usage(input_tokens=10, output_tokens=3)
    assert (call.streamed, call.finish_reason) == (True, "tool_calls")
    assert call.first_chunk_at is not None
    assert call.started_at <= call.first_chunk_at <= call.ended_at


async def test_program_that_asks_for_usage_gets_it(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, Recording())
        options = {"include_usage": True}
        answer = await ask(client, session.base_url, streamed=True, stream_options=options)
    assert json.loads(data_of(answer)[-2])["usage"]["prompt_tokens"] == 10


async def test_options_of_a_stream_are_kept_beside_ours(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, Recording())
        await ask(client, session.base_url, streamed=True, stream_options={"chunk_size": 2})
        assert server.received[0].json["stream_options"] == {"chunk_size": 2, "include_usage": True}


async def test_rollouts_key_goes_upstream_and_the_programs_does_not(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    theirs = {"Authorization": "Bearer programs-own", "api-key": "a", "X-Api-Key": "b", "Cookie": "c=d", "X-Trace": "t"}
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, Recording())
        await client.post(f"{session.base_url}/chat/completions", json=chat(), headers=theirs)
        headers = server.received[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-trace"] == "t"
    assert not {"api-key", "x-api-key", "cookie"} & headers.keys()


async def test_without_a_key_no_authorization_goes_upstream(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, None, Recording())
        await client.post(f"{session.base_url}/chat/completions", json=chat(), headers={"Authorization": "Bearer x"})
        assert "authorization" not in server.received[0].headers


async def test_secret_is_also_taken_as_a_bearer_token(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Say("by bearer")) as server:
        session = endpoint.open(server.url, KEY, policy)
        answer = await client.post(
            f"http://127.0.0.1:{endpoint.port}/v1/chat/completions",
            json=chat(),
            headers={"Authorization": f"Bearer {session.secret}"},
        )
        assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert answer.json()["choices"][0]["message"]["content"] == "by bearer"
    assert len(policy.calls) == 1


@pytest.mark.parametrize(
    ("suffix", "ours", "appended", "theirs"),
    [
        ("/v1", "base", "/chat/completions", "/v1/chat/completions"),
        ("/v1/", "base", "/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions", "base", "/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions", "chat", "", "/v1/chat/completions"),
        ("/v1/chat/completions", "chat", "/chat/completions", "/v1/chat/completions"),
        ("/v1", "chat", "/chat/completions", "/v1/chat/completions"),
        ("", "chat", "/v1/chat/completions", "/v1/chat/completions"),
        ("", "base", "/chat/completions", "/v1/chat/completions"),
        ("/rollouts/a%20b/c", "base", "/chat/completions", "/rollouts/a%20b/c/chat/completions"),
        ("/rollouts/1?token=t", "chat", "/chat/completions?x=y", "/rollouts/1/chat/completions?token=t&x=y"),
        ("/rollouts/1?token=t", "chat", "", "/rollouts/1?token=t"),
    ],
)
async def test_what_is_appended_to_our_url_is_appended_to_the_rollouts(
    endpoint: Endpoint, client: httpx.AsyncClient, suffix: str, ours: str, appended: str, theirs: str
) -> None:
    policy = Recording()
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url.removesuffix("/v1") + suffix, KEY, policy)
        url = session.base_url if ours == "base" else session.chat_url
        answer = await client.post(url + appended, json=chat())
        assert answer.status_code == 200
        assert server.received[0].path == theirs
    assert len(policy.calls) == 1


async def test_list_of_models_passes_and_is_not_recorded(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Raw([b'{"data": ', b"[]}"]), Raw([b"{}"])) as server:
        session = endpoint.open(f"{server.url}/chat/completions", KEY, policy)
        answer = await client.get(f"{session.base_url}/models?limit=3")
        assert answer.json() == {"data": []}
        await client.get(f"{session.base_url}/models/some/model.name")
        first, second = server.received
    assert (first.method, first.path) == ("GET", "/v1/models?limit=3")
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert second.path == "/v1/models/some/model.name"
    assert not policy.requests and not policy.calls


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("PUT", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/models/policy"),
        ("POST", "/v1/models"),
        ("POST", "/v1/chat/%63ompletions"),
        ("POST", "/v1/chat//completions"),
        ("POST", "/v1/chat%2Fcompletions"),
        ("POST", "/v1/chat/completions;x"),
        ("POST", "/v1/./chat/completions"),
        ("POST", "/v1/files/../chat/completions"),
        ("POST", "/v1/%2e%2e/chat/completions"),
        ("GET", "/v1/models/../files"),
        ("GET", "/v1/models/..%2ffiles"),
        ("GET", "/v1/modelsandmore"),
        ("GET", "/"),
    ],
)
async def test_what_would_go_past_the_limits_is_not_served(endpoint: Endpoint, method: str, path: str) -> None:
    policy = Recording()
    body = json.dumps(chat()).encode()
    async with ModelServer(default=Say()) as server:
        session = endpoint.open(server.url, KEY, policy)
        # Clients tidy paths up; what sends this does not.
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        head = f"{method} /s/{session.secret}{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        assert not server.received
    assert answer.startswith(b"HTTP/1.1 404 ") and b'"not_served"' in answer
    assert not policy.requests


async def test_program_that_must_notice_nothing_may_send_whatever_it_likes(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    async with ModelServer(Raw([b"{}"])) as server:
        session = endpoint.open(server.url, KEY, Recording(), transparent=True)
        await client.post(f"{session.base_url}/embeddings", json={"input": "x"})
        (received,) = server.received
    assert (received.path, received.json) == ("/v1/embeddings", {"input": "x"})


async def test_answer_to_head_has_no_body_to_wait_for(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HEAD /v1/models ")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 700\r\nx-there: yes\r\n\r\n")
        await reader.read()  # until our side hangs up
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        session = endpoint.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", KEY, Recording())
        answer = await client.head(f"{session.base_url}/models")
    assert (answer.status_code, answer.headers["x-there"]) == (200, "yes")


@pytest.mark.parametrize("streamed", [False, True])
async def test_token_ids_and_logprobs_are_kept_where_they_are_sent(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    say = Say("abc", logprobs=[-0.1, -0.2, -0.3], token_ids=[7, 8, 9], prompt_token_ids=[1, 2, 3, 4])
    policy = Recording()
    async with ModelServer(say) as server:
        session = endpoint.open(server.url, KEY, policy)
        await ask(client, session.base_url, streamed=streamed)
    tokens = policy.calls[0].tokens
    assert tokens is not None
    assert (tokens.ids, tokens.logprobs) == ([7, 8, 9], [-0.1, -0.2, -0.3])
    assert tokens.prompt_ids == (None if streamed else [1, 2, 3, 4])  # this server streams none of the prompt's


@pytest.mark.parametrize("streamed", [False, True])
async def test_tokens_are_marked_absent_where_none_are_sent(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    policy = Recording()
    async with ModelServer(Say(usage=None)) as server:
        session = endpoint.open(server.url, KEY, policy)
        await ask(client, session.base_url, streamed=streamed)
    (call,) = policy.calls
    assert (call.tokens, call.usage) == (None, None)


async def test_logprobs_alone_are_kept_alone(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Say("ab", logprobs=[-1.0, -2.0])) as server:
        session = endpoint.open(server.url, KEY, policy)
        await ask(client, session.base_url, streamed=True)
    assert policy.calls[0].tokens == CallTokens(prompt_ids=None, ids=None, logprobs=[-1.0, -2.0])


async def test_many_rollouts_share_the_port_and_the_connections(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    def answer(received: Any) -> Say:
        return Say(f"for {received.headers['authorization']}")

    async with ModelServer(default=answer) as server:
        policies = [Recording() for _ in range(20)]
        for index, policy in enumerate(policies):
            session = endpoint.open(server.url, f"key-{index}", policy)
            assert (await ask(client, session.base_url)).status_code == 200
        assert [policy.responses[0].message["content"] for policy in policies] == [
            f"for Bearer key-{index}" for index in range(20)
        ]
        assert server.connections == 1


async def test_characters_without_utf8_form_and_great_numbers_pass_unchanged(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800 \\u0000 \xc3\xa9"}], "seed": 12345678901234567890123}'
    async with ModelServer(Say("ok")) as server:
        session = endpoint.open(server.url, KEY, Recording())
        answer = await client.post(f"{session.base_url}/chat/completions", content=body)
        assert answer.status_code == 200
        assert server.received[0].json == json.loads(body)


async def test_policy_of_the_document_counts_a_call(client: httpx.AsyncClient) -> None:
    page = (ROOT / "docs" / "interception.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)

    async def program(*, OPENAI_BASE_URL: str, OPENAI_API_KEY: str) -> None:  # noqa: N803
        answer = await ask(client, OPENAI_BASE_URL)
        assert answer.status_code == 200

    try:
        async with ModelServer(Say()) as server:
            (call,) = await names["watch"](server.url, KEY, program)
    finally:
        await close_shared_endpoint()
    assert call.usage == Usage(input_tokens=10, output_tokens=3)
