"""A small OpenAI-compatible chat endpoint for the demo: chat completions only, HTTP/1.1 with keep-alive.

Each rollout has a base URL of its own, ``…/rollouts/ID/v1``, as trainers do that must tell whose tokens they serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from .policy import reply

MAX_BODY_BYTES = 1_000_000
MODEL = "policy"

_PATH = re.compile(r"/rollouts/([\w.-]+)/v1/chat/completions")
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 413: "Content Too Large"}


class _Message(msgspec.Struct):
    role: str
    content: str


class _ChatRequest(msgspec.Struct):
    messages: list[_Message]


class _Request(msgspec.Struct):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class _Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ChatEndpoint:
    """The endpoint; use `serving` to have it listen. ``api_key`` is what rollouts must bear."""

    def __init__(self, *, seed: int) -> None:
        self.api_key = f"demo-{secrets.token_urlsafe(18)}"
        self.origin = ""
        self._seed = seed
        self._calls: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()

    def base_url(self, rollout_id: str) -> str:
        """Where one rollout's model calls go."""
        return f"{self.origin}/rollouts/{rollout_id}/v1"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen on a free port of this machine until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client has gone, speaks no HTTP, or the demo is over: nobody waits for an answer
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await _read(reader)
                status, answer = 200, await self._answer(request)
            except _Refusal as refusal:
                status = refusal.status
                answer = {"error": {"message": str(refusal), "type": "invalid_request_error"}}
            body = msgspec.json.encode(answer)
            writer.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            if status == 413:
                return  # its body was not read, so what follows is no request

    async def _answer(self, request: _Request) -> dict[str, Any]:
        bearer = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(bearer, f"Bearer {self.api_key}".encode()):
            raise _Refusal(401, "the API key is missing or wrong")
        found = _PATH.fullmatch(request.path)
        if request.method != "POST" or found is None:
            raise _Refusal(404, "there is only POST /rollouts/ID/v1/chat/completions")
        try:
            messages = msgspec.json.decode(request.body, type=_ChatRequest).messages
        except msgspec.DecodeError as error:
            raise _Refusal(400, f"the body is no chat request: {error}") from error
        rollout_id = found[1]
        self._calls[rollout_id] += 1
        question = next((message.content for message in reversed(messages) if message.role == "user"), "")
        said = reply(question, seed=self._seed, draw=f"{rollout_id}/{self._calls[rollout_id]}")
        await asyncio.sleep(said.seconds)  # a model takes its time
        return _completion(said.text, messages)


async def _read(reader: asyncio.StreamReader) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise _Refusal(413, f"send a content-length of at most {MAX_BODY_BYTES}")
    body = await reader.readexactly(int(length))
    return _Request(method, rest.partition(" ")[0], headers, body)


def _completion(text: str, messages: list[_Message]) -> dict[str, Any]:
    asked, said = sum(len(message.content.split()) for message in messages), len(text.split())
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }
