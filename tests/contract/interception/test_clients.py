"""The clients that programs really use, through the endpoint: openai and litellm, as they come from the index."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

from rollbook.interception import Refused, Request
from rollbook.interception.endpoint import Endpoint
from rollbook.interception.session import Session
from rollbook.traces.calls import Usage
from tests.contract.interception.policies import Recording
from tests.support.model_server import Die, ModelServer, Reply, Say, Status

if TYPE_CHECKING:  # the packages take seconds to import: only the process that runs these tests pays for it
    from openai import AsyncOpenAI, OpenAI

KEY = "sk-the-rollouts-own-key"
QUESTION: list[Any] = [{"role": "user", "content": "what is there?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "look somewhere",
            "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
        },
    }
]
SEEN: dict[str, Any] = {
    "content": "let me look",
    "name": "look",
    "arguments": '{"where": "here"}',
    "finish": "tool_calls",
}

# What these packages warn about is between them and theirs.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

type Ask = Callable[[Session], Any]


def summary(completion: Any) -> dict[str, Any]:
    """What a client understood of a plain answer."""
    (choice,) = completion.choices
    (call,) = choice.message.tool_calls
    return {
        "content": choice.message.content,
        "name": call.function.name,
        "arguments": call.function.arguments,
        "finish": choice.finish_reason,
    }


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The same of a streamed answer."""
    found: dict[str, Any] = {"content": "", "name": "", "arguments": "", "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            found["content"] += choice.delta.content or ""
            found["finish"] = choice.finish_reason or found["finish"]
            for call in choice.delta.tool_calls or ():
                found["name"] += call.function.name or ""
                found["arguments"] += call.function.arguments or ""
    return found


@pytest.fixture(autouse=True)
def no_list_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm looks for one on the network unless it is told not to."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def openai_error(name: str) -> type[Exception]:
    found: type[Exception] = getattr(importlib.import_module("openai"), name)
    return found


def sync_openai(session: Session) -> OpenAI:
    from openai import OpenAI

    return OpenAI(base_url=session.base_url, api_key="programs-own", max_retries=0)


def async_openai(session: Session, *, max_retries: int = 0, timeout_sec: float = 30) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=session.base_url, api_key="programs-own", max_retries=max_retries, timeout=timeout_sec)


def openai_plain(session: Session) -> dict[str, Any]:
    with sync_openai(session) as client:
        return summary(client.chat.completions.create(model="policy", messages=QUESTION, tools=TOOLS))


def openai_streamed(session: Session) -> dict[str, Any]:
    with sync_openai(session) as client:
        return joined(list(client.chat.completions.create(model="policy", messages=QUESTION, tools=TOOLS, stream=True)))


async def openai_plain_async(session: Session) -> dict[str, Any]:
    async with async_openai(session) as client:
        return summary(await client.chat.completions.create(model="policy", messages=QUESTION, tools=TOOLS))


async def openai_streamed_async(session: Session) -> dict[str, Any]:
    async with async_openai(session) as client:
        stream = await client.chat.completions.create(model="policy", messages=QUESTION, tools=TOOLS, stream=True)
        return joined([chunk async for chunk in stream])


def litellm_arguments(session: Session, **more: Any) -> dict[str, Any]:
    return {
        "model": "openai/policy",
        "messages": QUESTION,
        "tools": TOOLS,
        "api_base": session.base_url,
        "api_key": "programs-own",
        **more,
    }


def litellm_plain(session: Session) -> dict[str, Any]:
    import litellm

    return summary(litellm.completion(**litellm_arguments(session)))


def litellm_streamed(session: Session) -> dict[str, Any]:
    import litellm

    return joined(list(litellm.completion(**litellm_arguments(session, stream=True))))


async def litellm_plain_async(session: Session) -> dict[str, Any]:
    import litellm

    return summary(await litellm.acompletion(**litellm_arguments(session)))


async def litellm_streamed_async(session: Session) -> dict[str, Any]:
    import litellm

    stream: AsyncIterator[Any] = await litellm.acompletion(**litellm_arguments(session, stream=True))
    return joined([chunk async for chunk in stream])


async def asked(ask: Ask, session: Session) -> Any:
    """What a client understood; a blocking one has a thread of its own."""
    if asyncio.iscoroutinefunction(ask):
        return await ask(session)
    return await asyncio.to_thread(ask, session)


async def check_understanding(endpoint: Endpoint, ask: Ask) -> None:
    policy = Recording()
    say = Say("let me look", tool_calls=[("call_1", "look", '{"where": "here"}')])
    async with ModelServer(say) as server:
        session = endpoint.open(server.url, KEY, policy)
        assert await asked(ask, session) == SEEN
        (received,) = server.received
    assert received.json["tools"] == TOOLS
    assert received.headers["authorization"] == f"Bearer {KEY}"
    (response,) = policy.responses
    assert response.message["content"] == "let me look"
    assert response.message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"where": "here"}'}
    assert response.usage == Usage(input_tokens=10, output_tokens=3)


@pytest.mark.parametrize("ask", [openai_plain, openai_streamed, openai_plain_async, openai_streamed_async])
async def test_openai_understands_answers_with_tool_calls(endpoint: Endpoint, ask: Ask) -> None:
    await check_understanding(endpoint, ask)


@pytest.fixture
def litellm() -> Any:
    """The package. It makes half a million objects, which none of many collections would free."""
    gc.disable()
    try:
        return importlib.import_module("litellm")
    finally:
        gc.enable()


async def test_litellm_understands_answers_with_tool_calls(endpoint: Endpoint, litellm: Any) -> None:
    for ask in (litellm_plain, litellm_streamed, litellm_plain_async, litellm_streamed_async):
        await check_understanding(endpoint, ask)
    for client in litellm.in_memory_llm_clients_cache.cache_dict.values():  # kept for the whole process otherwise
        closed = client.close()
        if closed is not None:
            await closed


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_retries_an_error_by_itself(endpoint: Endpoint, streamed: bool) -> None:
    policy = Recording()
    async with ModelServer(Status(429, headers={"retry-after-ms": "1"}), Say("after all")) as server:
        session = endpoint.open(server.url, KEY, policy)
        async with async_openai(session, max_retries=2) as client:
            if streamed:
                stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
                text = joined([chunk async for chunk in stream])["content"]
            else:
                text = (
                    (await client.chat.completions.create(model="policy", messages=QUESTION)).choices[0].message.content
                )
    assert text == "after all"
    assert [call.error.status if call.error else None for call in policy.calls] == [429, None]


async def test_openai_that_gives_up_waiting_gets_the_sample_it_waited_for(endpoint: Endpoint) -> None:
    """Its retry comes over another connection, while the model still works on the first one's answer."""
    gate = asyncio.Event()
    policy = Recording()
    async with ModelServer(Say("slow", gate=gate), Say("another")) as server:
        session = endpoint.open(server.url, KEY, policy)
        async with async_openai(session, max_retries=5, timeout_sec=1) as client:
            asking = asyncio.create_task(client.chat.completions.create(model="policy", messages=QUESTION))
            await server.wait_for(1)
            asyncio.get_running_loop().call_later(1.2, gate.set)
            assert (await asking).choices[0].message.content == "slow"
        assert len(server.received) == 1
    assert len(policy.calls) == 1


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Status(500), "InternalServerError"),
        (Die(), "APIConnectionError"),
        (Status(401), "AuthenticationError"),
    ],
)
async def test_openai_raises_what_it_raises_without_us(endpoint: Endpoint, reply: Reply, error: str) -> None:
    async with ModelServer(reply) as server:
        session = endpoint.open(server.url, KEY, Recording())
        async with async_openai(session) as client:
            with pytest.raises(openai_error(error)):
                await client.chat.completions.create(model="policy", messages=QUESTION)


async def test_openai_notices_a_broken_stream(endpoint: Endpoint) -> None:
    async with ModelServer(Die(after=3)) as server:
        session = endpoint.open(server.url, KEY, Recording())
        async with async_openai(session) as client:
            stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            with pytest.raises(openai_error("APIConnectionError")):
                await anext(chunk async for chunk in stream if chunk.choices[0].finish_reason)


@pytest.mark.parametrize("streamed", [False, True])
async def test_stopped_rollout_is_a_bad_request_to_openai(endpoint: Endpoint, streamed: bool) -> None:
    def stop(_: Request) -> Request:
        raise Refused("max_output_tokens")

    async with ModelServer() as server:
        session = endpoint.open(server.url, KEY, Recording(before=stop))
        async with async_openai(session, max_retries=3) as client:
            with pytest.raises(openai_error("BadRequestError"), match="rollout stopped: max_output_tokens"):
                await client.chat.completions.create(model="policy", messages=QUESTION, stream=streamed)
        assert not server.received


async def test_openai_lists_models(endpoint: Endpoint) -> None:
    body = b'{"object": "list", "data": [{"id": "policy", "object": "model", "created": 1, "owned_by": "us"}]}'
    async with ModelServer(Status(200, body)) as server:
        session = endpoint.open(server.url, KEY, Recording())
        async with async_openai(session) as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
