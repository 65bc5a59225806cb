"""A rollout's tools over HTTP: one request each, answered with one JSON message; the messages are in `dialects.mcp`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from . import answers
from .answers import Headers
from .dialects import mcp
from .dialects.mcp import Id, Message, RpcError
from .relay import Relay
from .tools import ToolDesk

log = logging.getLogger(__name__)

_SESSION_ID = b"mcp-session-id"
_SESSION_ID_BYTES = 16
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

type _Answer = tuple[int, Headers, bytes]
type _Key = tuple[bytes, Id]


class ToolServer:
    """The tools of one session, and their calls that are running."""

    def __init__(self, desk: ToolDesk) -> None:
        self.desk = desk
        self._calls: dict[_Key, ToolExchange] = {}

    def begun(self, key: _Key, exchange: ToolExchange) -> None:
        """A call that may be taken back from now on."""
        self._calls[key] = exchange

    def ended(self, key: _Key, exchange: ToolExchange) -> None:
        """It has its answer."""
        if self._calls.get(key) is exchange:
            del self._calls[key]

    def take_back(self, key: _Key) -> None:
        """Cancel a call, if it is still running."""
        if (exchange := self._calls.get(key)) is not None:
            exchange.take_back()


class ToolExchange:
    """One request and its answer; a tool that it calls ends when its program hangs up."""

    def __init__(self, server: ToolServer, method: str, *, headers: Headers, body: bytes) -> None:
        self.relay = Relay(on_empty=self._left, on_joined=lambda: None)
        self.task: asyncio.Task[None] | None = None
        self._server = server
        self._method = method
        self._headers = headers
        self._body = body
        self._taken_back = False

    def start(self, *, on_done: Callable[[ToolExchange], None]) -> None:
        """Begin; `on_done` is called once nothing runs any more."""
        self.task = asyncio.get_running_loop().create_task(self._run(), name="tool call")
        self.task.add_done_callback(lambda _: self._done(on_done))

    def stop(self, reason: str) -> None:
        """End it now."""
        if self.task is not None:
            self.task.cancel(reason)

    def take_back(self) -> None:
        """The program does not want it any more."""
        self._taken_back = True
        self.stop("the program took it back")

    def _left(self) -> None:
        if not self.relay.ended:
            self.stop("the program hung up")

    def _done(self, on_done: Callable[[ToolExchange], None]) -> None:
        if not self.relay.ended:  # it was cancelled, perhaps before its first step
            self._send(_over())
        on_done(self)

    async def _run(self) -> None:
        self._send(self._refusal() or await self._answer())

    def _send(self, answer: _Answer) -> None:
        status, headers, body = answer
        self.relay.answer(status, headers, body)

    def _refusal(self) -> _Answer | None:
        """What the transport's rules say, whatever the body is."""
        origin = answers.value_of(self._headers, b"origin")
        if origin is not None and not _is_local(origin.decode("latin-1")):
            return _error(403, RpcError(mcp.INVALID_REQUEST, "pages of other origins may not use these tools"))
        if self._method != "POST":
            error = RpcError(mcp.INVALID_REQUEST, f"{self._method} is not for tools: POST one message at a time")
            status, headers, body = _error(405, error)
            return status, [*headers, (b"allow", b"POST")], body
        return None

    async def _answer(self) -> _Answer:
        try:
            message = mcp.read(self._body)
        except RpcError as error:
            return _error(400, error)
        if message.method != mcp.INITIALIZE and (refusal := self._version_refusal()) is not None:
            return refusal
        if message.id is None or message.method is None:
            self._note(message)
            return 202, [], b""
        return await self._answer_request(message, message.id)

    def _version_refusal(self) -> _Answer | None:
        version = answers.value_of(self._headers, b"mcp-protocol-version")
        if version is None or version.decode("latin-1") in mcp.VERSIONS:
            return None
        known = ", ".join(mcp.VERSIONS)
        return _error(400, RpcError(mcp.INVALID_REQUEST, f"MCP-Protocol-Version must be one of {known}"))

    def _note(self, message: Message) -> None:
        called = message.params.get("requestId")
        if message.method == mcp.CANCELLED and mcp.is_id(called):
            self._server.take_back(self._key(called))

    async def _answer_request(self, message: Message, number: Id) -> _Answer:
        key = self._key(number)
        if message.method == mcp.CALL:
            self._server.begun(key, self)
        headers = [answers.JSON_TYPE]
        try:
            body = mcp.result_body(number, await mcp.result_of(message, self._server.desk))
        except RpcError as error:
            body = mcp.error_body(number, error)
        except asyncio.CancelledError:
            if not self._taken_back:
                raise
            body = mcp.error_body(number, RpcError(mcp.TAKEN_BACK, "the call was taken back"))
        except Exception:
            log.exception("a rollout's tools failed on %s", message.method)
            body = mcp.error_body(number, RpcError(mcp.INTERNAL_ERROR, "the rollout's tools failed; see its log"))
        else:
            if message.method == mcp.INITIALIZE:
                # So that two programs of one rollout, which both count from 1, cannot take back each other's calls.
                headers.append((_SESSION_ID, secrets.token_hex(_SESSION_ID_BYTES).encode()))
        finally:
            self._server.ended(key, self)
        return 200, headers, body

    def _key(self, number: Id) -> _Key:
        return answers.value_of(self._headers, _SESSION_ID) or b"", number


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOOPBACK
    except ValueError:
        return False


def _error(status: int, error: RpcError) -> _Answer:
    return status, [answers.JSON_TYPE], mcp.error_body(None, error)


def _over() -> _Answer:
    answer = answers.over()
    return answer.status, [answers.JSON_TYPE], answer.body()
