"""What a rollout decides: other requests, other texts, no further turn; in a plain answer and in a stream."""

from __future__ import annotations

import asyncio
import contextvars
import json

import httpx
import msgspec
import pytest

from rollbook.interception import Refused, Request, Response
from rollbook.interception.endpoint import Endpoint, close_shared_endpoint, shared_endpoint
from tests.contract.interception.policies import Recording, ask, chat, gather_lines
from tests.support.model_server import ModelServer, Say

KEY = "sk-the-rollouts-own-key"
STOPPED = {"error": {"message": "rollout stopped: max_turns", "type": "rollout_stopped"}}


def refuse(_: Request | Response) -> Request:
    raise Refused("max_turns")


def refuse_answer(_: Response) -> Response:
    raise Refused("max_turns")


def polite(response: Response) -> Response:
    message = {**response.message, "content": "Would you please look?"}
    return msgspec.structs.replace(response, message=message, finish_reason="stop")


def chunks_of(answer: httpx.Response) -> list[dict[str, object]]:
    events = [event for event in answer.text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


@pytest.mark.parametrize("streamed", [False, True])
async def test_refused_request_is_a_400_and_never_goes_upstream(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    policy = Recording(before=refuse)
    async with ModelServer() as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=streamed)
        assert not server.received
    assert (answer.status_code, answer.json()) == (400, STOPPED)
    assert not policy.calls


@pytest.mark.parametrize("streamed", [False, True])
async def test_changed_request_goes_upstream(endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool) -> None:
    def shout(request: Request) -> Request:
        (message,) = request.messages
        return msgspec.structs.replace(request, messages=[{**message, "content": message["content"].upper()}])

    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, Recording(before=shout))
        await ask(client, session.base_url, "quietly", streamed=streamed, tools=[{"type": "function"}], seed=1)
        body = server.received[0].json
    assert body["messages"] == [{"role": "user", "content": "QUIETLY"}]
    assert (body["tools"], body["seed"], body["model"]) == ([{"type": "function"}], 1, "policy")


async def test_changed_text_is_patched_into_a_plain_answer(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    say = Say("look!", finish_reason="length", logprobs=[-1.0], token_ids=[5], reasoning="hm")
    async with ModelServer(say) as server:
        session = endpoint.open(server.url, KEY, Recording(answered=polite))
        answer = await ask(client, session.base_url)
    body = answer.json()
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Would you please look?",
        "reasoning_content": "hm",
    }
    assert choice["finish_reason"] == "stop"
    assert not {"logprobs", "token_ids"} & choice.keys()  # they are another text's
    assert (body["id"], body["usage"]["completion_tokens"]) == ("chatcmpl-1", 3)
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("wants_usage", [False, True])
async def test_changed_text_of_a_held_stream_is_streamed(
    endpoint: Endpoint, client: httpx.AsyncClient, wants_usage: bool
) -> None:
    policy = Recording(answered=polite, needs_whole_answer=True)
    async with ModelServer(Say("look!", tool_calls=[("c", "f", "{}")])) as server:
        session = endpoint.open(server.url, KEY, policy)
        options = {"include_usage": True} if wants_usage else None
        answer = await ask(client, session.base_url, streamed=True, stream_options=options)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = chunks_of(answer)
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]  # type: ignore[index]
    assert choices[0]["delta"]["content"] == "Would you please look?"
    assert choices[0]["delta"]["tool_calls"] == [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    assert choices[-1]["finish_reason"] == "stop"
    assert [chunk for chunk in chunks if not chunk["choices"]] == ([chunks[-1]] if wants_usage else [])


async def test_unchanged_held_stream_passes_as_it_came(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(default=Say("some text")) as server:
        held = endpoint.open(server.url, KEY, Recording(needs_whole_answer=True))
        passed = endpoint.open(server.url, KEY, Recording())
        first = await ask(client, held.base_url, streamed=True)
        second = await ask(client, passed.base_url, streamed=True)
    assert first.content == second.content


@pytest.mark.parametrize("streamed", [False, True])
async def test_refused_answer_that_was_held_is_a_400(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    policy = Recording(answered=refuse_answer, needs_whole_answer=True)
    async with ModelServer(Say("secret")) as server:
        answer = await ask(client, endpoint.open(server.url, KEY, policy).base_url, streamed=streamed)
    assert (answer.status_code, answer.json()) == (400, STOPPED)
    assert len(policy.calls) == 1  # the turn was committed, so it is no failure
    assert not policy.failures


async def test_refused_answer_on_its_way_says_so_and_breaks(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording(answered=refuse_answer)
    got: list[str] = []
    async with ModelServer(Say("all of it", pieces=3)) as server:
        url = f"{endpoint.open(server.url, KEY, policy).base_url}/chat/completions"
        async with client.stream("POST", url, json=chat(streamed=True)) as answer:
            with pytest.raises(httpx.RemoteProtocolError):
                await gather_lines(answer, got)
    lines = [line for line in got if line]
    assert json.loads(lines[-1].removeprefix("data: ")) == STOPPED
    assert not any('finish_reason": "stop' in line or "[DONE]" in line for line in lines)
    assert not policy.failures


async def test_end_of_a_stream_waits_for_the_commit(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    committing, commit = asyncio.Event(), asyncio.Event()

    async def slowly(response: Response) -> Response:
        committing.set()
        await commit.wait()
        return response

    lines: list[str] = []
    async with ModelServer(Say("text", pieces=2)) as server:
        url = f"{endpoint.open(server.url, KEY, Recording(answered=slowly)).base_url}/chat/completions"
        async with client.stream("POST", url, json=chat(streamed=True)) as answer:
            events = answer.aiter_lines()
            while "xt" not in (line := await anext(events)):
                lines.append(line)
            await committing.wait()
            ends = asyncio.ensure_future(anext(events))
            assert not ends.done()
            commit.set()
            rest = [await ends, *[line async for line in events]]
    assert not any('"stop"' in line for line in lines)
    assert any('"stop"' in line for line in rest)
    assert "data: [DONE]" in rest


async def test_fault_of_a_policy_fails_its_call_alone(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    faults = [RuntimeError("no idea"), None]

    def once(request: Request) -> Request:
        if fault := faults.pop(0):
            raise fault
        return request

    policy = Recording(before=once)
    async with ModelServer(Say()) as server:
        session = endpoint.open(server.url, KEY, policy)
        failed, answered = await ask(client, session.base_url), await ask(client, session.base_url)
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "rollout_error")
    assert policy.faults == [failed.json()["error"]["message"]]
    assert "RuntimeError('no idea')" in policy.faults[0]
    assert answered.status_code == 200
    assert len(policy.calls) == 1


async def test_each_rollout_decides_in_its_own_context(client: httpx.AsyncClient) -> None:
    """Also the first one's is seen by nobody else, who brought up the endpoint that all share."""
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    def look(request: Request) -> Request:
        seen.append(who.get())
        return request

    async def opened(name: str, url: str) -> str:
        who.set(name)
        return (await shared_endpoint()).open(url, KEY, Recording(before=look)).base_url

    async with ModelServer(default=Say()) as server:
        try:
            first, second = [await asyncio.create_task(opened(name, server.url)) for name in ("first", "second")]
            for base_url in (second, first, second):
                await ask(client, base_url, base_url)
        finally:
            await close_shared_endpoint()
    assert seen == ["second", "first", "second"]


async def test_fault_behind_the_answer_is_told_once_and_is_no_failed_call(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    def broken(_response: Response) -> Response:
        raise KeyError("ledger")

    policy = Recording(answered=broken)
    async with ModelServer(Say()) as server:
        failed = await ask(client, endpoint.open(server.url, KEY, policy).base_url)
    assert failed.status_code == 500
    assert policy.faults == [failed.json()["error"]["message"]]
    assert policy.failures == []
