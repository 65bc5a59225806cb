"""The tools of a rollout over HTTP: what programs get that speak the Model Context Protocol, and when calls end."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest

from rollbook.interception import app as endpoint_app
from rollbook.interception.endpoint import Endpoint
from rollbook.interception.session import Session
from rollbook.interception.tools import ToolResult
from tests.contract.interception.policies import Recording, until_waiting
from tests.support.model_server import ModelServer, Status

NOWHERE = "http://127.0.0.1:9/v1"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")

type Doing = Callable[[Mapping[str, Any]], Awaitable[str]]


class Desk:
    """One tool that does as its test says."""

    def __init__(self, doing: Doing | None = None) -> None:
        self.called = asyncio.Event()
        self.ended = asyncio.Event()
        self.names: list[str] = []
        self._doing = doing

    @property
    def definitions(self) -> list[dict[str, Any]]:
        described = {"name": "echo", "parameters": SCHEMA, "description": "Say it again."}
        bare = {"name": "bare", "parameters": {"type": "object"}}
        return [{"type": "function", "function": function} for function in (described, bare)]

    async def result_of(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.names.append(name)
        self.called.set()
        try:
            if self._doing is not None:
                return ToolResult(await self._doing(arguments))
            if name != "echo":
                return ToolResult(f"error: there is no tool {name!r}", failed=True)
            return ToolResult(str(arguments.get("text", "")))
        finally:
            self.ended.set()


async def forever(_: Mapping[str, Any]) -> str:
    """A tool without an end."""
    await asyncio.Event().wait()
    return "never"


def opened(endpoint: Endpoint, desk: Desk, url: str = NOWHERE) -> tuple[Session, str]:
    """A session with these tools, and where they are."""
    session = endpoint.open(url, "sk-the-rollouts-own-key", Recording(), tools=desk)
    assert session.tools_url == f"{session.chat_url}/mcp"
    return session, session.tools_url


async def send(
    client: httpx.AsyncClient,
    url: str,
    method: str,
    *,
    number: Any = 1,
    headers: dict[str, str] | None = None,
    **params: Any,
) -> httpx.Response:
    """One request."""
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    return await client.post(
        url, content=body, headers={"accept": "application/json, text/event-stream", **(headers or {})}
    )


async def echo(client: httpx.AsyncClient, url: str, text: str, **options: Any) -> httpx.Response:
    """One call of the tool."""
    return await send(client, url, "tools/call", name="echo", arguments={"text": text}, **options)


def hello(version: str) -> dict[str, Any]:
    """What `initialize` says."""
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "a program", "version": "1"}}


async def test_program_says_hello_lists_the_tools_and_calls_one(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    _, url = opened(endpoint, Desk())
    answer = await send(client, url, "initialize", number="first", **hello("2025-06-18"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["id"] == "first"
    assert answer.json()["result"]["protocolVersion"] == "2025-06-18"
    assert answer.json()["result"]["capabilities"] == {"tools": {}}
    assert answer.json()["result"]["serverInfo"]["name"] == "rollbook"
    headers = {"mcp-protocol-version": "2025-06-18", "mcp-session-id": answer.headers["mcp-session-id"]}
    noted = await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    assert (noted.status_code, noted.content) == (202, b"")
    assert (await send(client, url, "ping", headers=headers)).json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    listed = await send(client, url, "tools/list", number=2, headers=headers)
    assert listed.json()["result"]["tools"] == [
        {"name": "echo", "description": "Say it again.", "inputSchema": SCHEMA},
        {"name": "bare", "inputSchema": {"type": "object"}},
    ]
    called = await echo(client, url, "hällo \ud800", number=3, headers=headers)
    assert called.json() == {
        "jsonrpc": "2.0",
        "id": 3,
        "result": {"content": [{"type": "text", "text": "hällo \ud800"}], "isError": False},
    }


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25"), ("9999", "2025-11-25")],
)
async def test_version_is_the_programs_where_it_is_known_and_else_the_newest(
    endpoint: Endpoint, client: httpx.AsyncClient, asked: str, agreed: str
) -> None:
    _, url = opened(endpoint, Desk())
    answer = await send(client, url, "initialize", **hello(asked))
    assert answer.json()["result"]["protocolVersion"] == agreed


async def test_tool_that_fails_and_tool_that_is_not_there_have_results(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    _, url = opened(endpoint, Desk())
    answer = await send(client, url, "tools/call", name="fly")
    assert answer.json()["result"] == {
        "content": [{"type": "text", "text": "error: there is no tool 'fly'"}],
        "isError": True,
    }


@pytest.mark.parametrize(
    ("body", "status", "code", "number"),
    [
        (b"", 400, -32700, None),
        (b"{", 400, -32700, None),
        (b"[" * 100_000, 400, -32700, None),
        (b"[]", 400, -32600, None),
        (b"7", 400, -32600, None),
        (b'{"id": 1, "method": "ping"}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', 400, -32600, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', 200, -32601, 1),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "initialize"}', 200, -32602, 1.5),
        (b'{"jsonrpc": "2.0", "id": "x", "method": "tools/call"}', 200, -32602, "x"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name":"x","arguments":7}}', 200, -32602, 1),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "2"}}', 200, -32602, 1),
    ],
)  # fmt: skip
async def test_what_is_no_request_gets_an_error_of_json_rpc(
    endpoint: Endpoint, client: httpx.AsyncClient, body: bytes, status: int, code: int, number: Any
) -> None:
    desk = Desk()
    _, url = opened(endpoint, desk)
    answer = await client.post(url, content=body)
    told = answer.json()
    assert (answer.status_code, told["jsonrpc"], told["error"]["code"], told["id"]) == (status, "2.0", code, number)
    assert told["error"]["message"]
    assert desk.names == []


@pytest.mark.parametrize(
    "message",
    [
        {"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}},
        {"id": 7, "result": {}},
        {"method": "notifications/cancelled", "params": {"requestId": "nobody's"}},
        {"method": "notifications/cancelled", "params": {"requestId": {}}},
    ],
)
async def test_what_wants_no_answer_gets_none_and_calls_nothing(
    endpoint: Endpoint, client: httpx.AsyncClient, message: dict[str, Any]
) -> None:
    desk = Desk()
    _, url = opened(endpoint, desk)
    answer = await client.post(url, json={"jsonrpc": "2.0", **message})
    assert (answer.status_code, answer.content) == (202, b"")
    assert desk.names == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
async def test_other_methods_are_told_which_one_it_is(
    endpoint: Endpoint, client: httpx.AsyncClient, method: str
) -> None:
    _, url = opened(endpoint, Desk())
    answer = await client.request(method, url, headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("version", ["2026-07-28", "2025-03-26", "x"])
async def test_version_that_was_not_agreed_on_is_refused(
    endpoint: Endpoint, client: httpx.AsyncClient, version: str
) -> None:
    desk = Desk()
    _, url = opened(endpoint, desk)
    answer = await echo(client, url, "x", headers={"mcp-protocol-version": version})
    assert answer.status_code == 400
    assert "2025-11-25" in answer.json()["error"]["message"]
    assert desk.names == []


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://127.0.0.1:80", 200),
        ("http://[::1]", 200),
    ],
)
async def test_pages_of_elsewhere_may_not_use_the_tools(
    endpoint: Endpoint, client: httpx.AsyncClient, origin: str, status: int
) -> None:
    desk = Desk()
    _, url = opened(endpoint, desk)
    assert (await echo(client, url, "x", headers={"origin": origin})).status_code == status
    assert desk.names == ["echo"] * (status == 200)


async def test_body_beyond_the_bound_is_refused(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_app, "BODY_MAX_BYTES", 1000)
    desk = Desk()
    _, url = opened(endpoint, desk)
    assert (await echo(client, url, "x" * 1000)).status_code == 413
    assert desk.names == []


async def test_tools_are_the_sessions_own_and_need_its_secret(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    one, other = Desk(), Desk()
    _, url = opened(endpoint, one)
    session, _ = opened(endpoint, other)
    await echo(client, url, "x")
    assert (one.names, other.names) == (["echo"], [])
    fixed = f"http://127.0.0.1:{endpoint.port}/mcp"
    assert (await echo(client, fixed, "x")).status_code == 401
    assert (await echo(client, fixed, "x", headers={"authorization": f"Bearer {session.secret}"})).status_code == 200
    assert (one.names, other.names) == (["echo"], ["echo"])


async def test_session_without_tools_passes_on_what_looks_like_them(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    async with ModelServer(Status(404)) as server:
        session = endpoint.open(server.url, None, Recording(), transparent=True)
        assert session.tools_url is None
        assert (await echo(client, f"{session.chat_url}/mcp", "x")).status_code == 404
        assert [received.path for received in server.received] == ["/v1/mcp"]


async def test_calls_run_side_by_side_in_the_context_of_whoever_opened_the_session(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    both = asyncio.Barrier(2)

    async def meet(arguments: Mapping[str, Any]) -> str:
        await both.wait()
        who, _ = WHO.get(), WHO.set("a tool")
        return f"{arguments['text']} for {who}"

    WHO.set("the rollout")
    _, url = opened(endpoint, Desk(meet))
    WHO.set("somebody else")
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(echo(client, url, text, number=1) for text in ("a", "b")))
    texts = [answer.json()["result"]["content"][0]["text"] for answer in answers]
    assert texts == ["a for the rollout", "b for the rollout"]


async def test_close_cancels_tools_that_run_and_later_calls_hear_410(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    desk = Desk(forever)
    session, url = opened(endpoint, desk)
    task = asyncio.create_task(echo(client, url, "x"))
    await desk.called.wait()
    await session.close()
    assert desk.ended.is_set(), "close did not wait for the tool's end"
    answer = await task
    assert (answer.status_code, answer.json()["error"]["type"]) == (410, "rollout_over")
    for method in ("POST", "GET"):
        later = await client.request(method, url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (later.status_code, later.json()["error"]["type"]) == (410, "rollout_over")
    assert desk.names == ["echo"]


async def test_close_waits_for_a_tool_that_cleans_up(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    cleaning, clean = asyncio.Event(), asyncio.Event()

    async def tidy(_: Mapping[str, Any]) -> str:
        try:
            return await forever({})
        finally:
            cleaning.set()
            await clean.wait()

    desk = Desk(tidy)
    session, url = opened(endpoint, desk)
    task = asyncio.create_task(echo(client, url, "x"))
    await desk.called.wait()
    closing = asyncio.create_task(session.close())
    await cleaning.wait()
    assert not closing.done()
    clean.set()
    await closing
    assert desk.ended.is_set()
    assert (await task).status_code == 410


async def test_tool_ends_when_its_program_hangs_up(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    desk = Desk(forever)
    session, url = opened(endpoint, desk)
    task = asyncio.create_task(echo(client, url, "x"))
    await desk.called.wait()
    task.cancel()
    async with asyncio.timeout(10):
        await desk.ended.wait()
    await until_waiting(session, 0)


async def test_program_takes_back_its_own_call_and_no_other_programs(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    desk = Desk(forever)
    session, url = opened(endpoint, desk)
    mine, yours = [
        {"mcp-session-id": (await send(client, url, "initialize", **hello("2025-11-25"))).headers["mcp-session-id"]}
        for _ in range(2)
    ]
    call = asyncio.create_task(echo(client, url, "x", number=5, headers=mine))
    await desk.called.wait()
    back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    for headers in (yours, {}):
        assert (await client.post(url, json=back, headers=headers)).status_code == 202
    assert not desk.ended.is_set()
    assert (await client.post(url, json=back, headers=mine)).status_code == 202
    answer = await call
    assert desk.ended.is_set()
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (200, -32000, 5)
    assert not session.closed


async def test_desk_that_breaks_is_an_internal_error_and_its_reason_stays_here(
    endpoint: Endpoint, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: Mapping[str, Any]) -> str:
        raise RuntimeError("the reason")

    _, url = opened(endpoint, Desk(broken))
    answer = await echo(client, url, "x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32603)
    assert "the reason" not in answer.text
    assert "the reason" in caplog.text


async def test_path_with_a_slash_at_its_end_is_the_same(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    _, url = opened(endpoint, Desk())
    assert json.loads((await send(client, f"{url}/", "ping")).content)["result"] == {}
