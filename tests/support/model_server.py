"""A small model server that answers as its test says: OpenAI's chat completions, and all that goes wrong with them.

    async with ModelServer(Say("first"), Status(429, headers={"Retry-After": "0"}), Say("second")) as server:
        ... requests go to server.url ...

What is scripted is answered in order; once it is used up, or for all requests, a function of the request answers
(`ModelServer(default=...)`). It runs on the test's loop, or in a thread of its own with `in_thread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, field

MODEL = "scripted-1"


class Received(Struct):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    number: int
    """Counts from 1."""
    hung_up: asyncio.Event
    """Set once the client has closed its connection."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def streamed(self) -> bool:
        return bool(self.json.get("stream"))


class Say(Struct):
    """An answer of the model, in chunks if the request asks for them."""

    text: str | None = "ok"
    tool_calls: Sequence[tuple[str, str, str]] = ()
    """Id, name and arguments as JSON text."""
    reasoning: str | None = None
    finish_reason: str | None = None
    """By default `stop`, or `tool_calls` where there are some."""
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 3})
    """None sends none."""
    logprobs: Sequence[float] | None = None
    """One for each of the text's pieces."""
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    pieces: int = 3
    """How many chunks a streamed text comes in."""
    gate: asyncio.Event | None = None
    """Waited for before the answer begins."""
    gate_in: asyncio.Event | None = None
    """Waited for after a stream's first piece."""


class Status(Struct):
    """An error, or anything else with a status and a body."""

    status: int
    body: bytes = b'{"error": {"message": "scripted error", "type": "scripted"}}'
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Raw(Struct):
    """Bytes as they are, with 200; `parts` go out one by one."""

    parts: Sequence[bytes]
    content_type: str = "application/json"
    cut: bool = False
    """Close the connection in place of a proper end."""


class Hang(Struct):
    """No end: silence from the beginning, or after so many chunks of an answer."""

    after: int = 0
    say: Say = field(default_factory=Say)


class Die(Struct):
    """The connection is closed before anything was sent, or after so many chunks of a streamed answer.

    A plain answer is cut in its middle.
    """

    after: int = 0
    say: Say = field(default_factory=Say)


type Reply = Say | Status | Raw | Hang | Die
type Behaviour = Callable[[Received], Reply | Awaitable[Reply]]


class ModelServer:
    """Listens on a free port of 127.0.0.1 while its context is open."""

    def __init__(
        self, *script: Reply, default: Reply | Behaviour | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = list(script)
        self.default = default
        self.received: list[Received] = []
        self.url = ""
        """The base URL, which ends with ``/v1``."""
        self.connections = 0
        """How many were made."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._connected), "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for(self, count: int) -> Received:
        """The request of that number, once it is there."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)
        return self.received[count - 1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (received := await self._receive(reader, _hung_up(writer))) is not None:
                if not await self._answer(received, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client went away, or the server's test is over
        finally:
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _receive(self, reader: asyncio.StreamReader, hung_up: asyncio.Event) -> Received | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        async with self._changed:
            received = Received(method, path, headers, body, len(self.received) + 1, hung_up)
            self.received.append(received)
            self._changed.notify_all()
        return received

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        reply = await self._reply(received)
        if isinstance(reply, Status):
            _head(writer, reply.status, reply.content_type, length=len(reply.body), extra=reply.headers)
            writer.write(reply.body)
            await writer.drain()
            return True
        if isinstance(reply, Raw):
            _head(writer, 200, reply.content_type)
            for part in reply.parts:
                _chunk(writer, part)
                await writer.drain()
                await asyncio.sleep(0)
            return _end(writer, cut=reply.cut)
        if isinstance(reply, Hang | Die) and reply.after == 0 and (isinstance(reply, Hang) or received.streamed):
            if isinstance(reply, Hang):
                await received.hung_up.wait()
            return False
        say = reply if isinstance(reply, Say) else reply.say
        if say.gate is not None:
            await _first(say.gate.wait(), received.hung_up.wait())
        if not received.streamed:
            return await self._whole(reply, say, received, writer)
        _head(writer, 200, "text/event-stream; charset=utf-8")
        for index, chunk in enumerate(stream_chunks(say, received.json)):
            if isinstance(reply, Hang | Die) and index == reply.after:
                if isinstance(reply, Hang):
                    await received.hung_up.wait()
                return False
            _chunk(writer, b"data: " + chunk + b"\n\n")
            await writer.drain()
            if index == 1 and say.gate_in is not None:
                await _first(say.gate_in.wait(), received.hung_up.wait())
        return _end(writer, cut=False)

    async def _whole(self, reply: Say | Hang | Die, say: Say, received: Received, writer: asyncio.StreamWriter) -> bool:
        body = json.dumps(completion(say, received.json)).encode()
        _head(writer, 200, "application/json", length=len(body))
        if isinstance(reply, Say):
            writer.write(body)
            await writer.drain()
            return True
        writer.write(body[: len(body) // 2])
        await writer.drain()
        if isinstance(reply, Hang):
            await received.hung_up.wait()
        return False

    async def _reply(self, received: Received) -> Reply:
        if self.script:
            return self.script.pop(0)
        if callable(self.default):
            reply = self.default(received)
            return await reply if isinstance(reply, Awaitable) else reply
        if self.default is not None:
            return self.default
        return Status(500, b'{"error": {"message": "the script has no answer for this request", "type": "script"}}')


class _Connection(asyncio.StreamReaderProtocol):
    """A connection with streams that tells when its client has gone."""

    def __init__(self, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        super().__init__(asyncio.StreamReader(), connected)
        self.hung_up = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.hung_up.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hung_up.set()
        super().connection_lost(exc)


def completion(say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
    """A plain answer's JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": say.text}
    if say.reasoning is not None:
        message["reasoning_content"] = say.reasoning
    if say.tool_calls:
        message["tool_calls"] = [_tool_call(*call) for call in say.tool_calls]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": _finish_reason(say)}
    if say.logprobs is not None:
        choice["logprobs"] = _logprobs(_pieces(say.text, len(say.logprobs)), say.logprobs)
    if say.token_ids is not None:
        choice["token_ids"] = list(say.token_ids)
    answer = {**_common("chat.completion", body), "choices": [choice]}
    if say.prompt_token_ids is not None:
        answer["prompt_token_ids"] = list(say.prompt_token_ids)
    if say.usage is not None:
        answer["usage"] = _usage(say)
    return answer


def stream_chunks(say: Say, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The data of a streamed answer's events, ``[DONE]`` included."""
    common = _common("chat.completion.chunk", body)

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
        return json.dumps({**common, "choices": [choice]}).encode()

    yield chunk({"role": "assistant", "content": ""})
    if say.reasoning is not None:
        yield chunk({"reasoning_content": say.reasoning})
    pieces = _pieces(say.text, say.pieces if say.logprobs is None else len(say.logprobs))
    for index, piece in enumerate(pieces):
        more: dict[str, Any] = {}
        if say.logprobs is not None:
            more["logprobs"] = _logprobs([piece], [say.logprobs[index]])
        if say.token_ids is not None:  # all that are left with the last piece
            more["token_ids"] = list(say.token_ids[index : None if index == len(pieces) - 1 else index + 1])
        yield chunk({"content": piece}, **more)
    for index, (call_id, name, arguments) in enumerate(say.tool_calls):
        started = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [started]})
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, _finish_reason(say))
    if say.usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        yield json.dumps({**common, "choices": [], "usage": _usage(say)}).encode()
    yield b"[DONE]"


@contextlib.contextmanager
def in_thread(server: ModelServer) -> Iterator[ModelServer]:
    """Run a server in a thread with a loop of its own, for tests that have none or that block theirs."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def run() -> None:
        async with server:
            started.set()
            await over.wait()

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=run_loop, name="model server", daemon=True)
    thread.start()
    try:
        assert started.wait(10), "the model server did not start"
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


@contextlib.asynccontextmanager
async def model_server(*script: Reply, default: Reply | Behaviour | None = None) -> AsyncIterator[ModelServer]:
    """A server as a context, for fixtures."""
    async with ModelServer(*script, default=default) as server:
        yield server


def _hung_up(writer: asyncio.StreamWriter) -> asyncio.Event:
    protocol = writer.transport.get_protocol()
    assert isinstance(protocol, _Connection)
    return protocol.hung_up


async def _first(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _head(
    writer: asyncio.StreamWriter,
    status: int,
    content_type: str,
    *,
    length: int | None = None,
    extra: Mapping[str, str] | None = None,
) -> None:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {content_type}", framing]
    lines += [f"{name}: {value}" for name, value in (extra or {}).items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _end(writer: asyncio.StreamWriter, *, cut: bool) -> bool:
    if not cut:
        writer.write(b"0\r\n\r\n")
    return not cut


def _common(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": body.get("model") or MODEL}


def _usage(say: Say) -> dict[str, Any]:
    usage = dict(say.usage or {})
    usage.setdefault("total_tokens", usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0))
    return usage


def _finish_reason(say: Say) -> str:
    return say.finish_reason or ("tool_calls" if say.tool_calls else "stop")


def _tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _logprobs(pieces: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"token": piece, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for piece, logprob in zip(pieces, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _pieces(text: str | None, count: int) -> list[str]:
    """The text in that many pieces; later ones may be empty."""
    if text is None:
        return []
    size = -(-len(text) // count) or 1
    return [text[index * size : (index + 1) * size] for index in range(count)]
