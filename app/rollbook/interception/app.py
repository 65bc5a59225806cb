"""The endpoint's requests: whose they are, what they ask for, and how answers are sent.

A plain ASGI application; `rollbook.interception.server` gives it connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from . import answers
from .answers import ErrorAnswer, Headers
from .call import Incoming
from .dialects import mcp, openai_chat
from .relay import Relay
from .session import Session

type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_MAX_BYTES = 64 * 1024 * 1024
CUT = "rollbook.cut"
"""The scope's extension that closes the connection, so that an answer's end is missing for its reader too."""

_CUT_SEC = 10.0
"""How long the bytes before a cut may take to a slow reader."""
_PATH_PREFIX = "/s/"
_BEARER = b"bearer "

_UNKNOWN = ErrorAnswer(
    401, "no rollout has this secret; use the base URL or the API key that the rollout was given", "unknown_secret"
)
_TOO_LARGE = ErrorAnswer(413, f"the body is over {BODY_MAX_BYTES} bytes; send less", "body_too_large")


class Sessions(Protocol):
    """Where sessions are found by their secrets."""

    def find(self, secret: str) -> Session | None:
        """The open session; None if there is none."""
        ...

    def was_closed(self, secret: str) -> bool:
        """Whether such a session was closed lately."""
        ...


class App:
    """Finds the session of each request and passes the request to it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers: Headers = scope["headers"]
        found = self._session(scope["raw_path"].decode("ascii", "replace"), headers)
        if isinstance(found, ErrorAnswer):
            await _send_error(found, send)
            return
        session, rest = found
        body = await _body(headers, receive)
        if body is None:
            return
        if isinstance(body, ErrorAnswer):
            await _send_error(body, send)
            return
        if session.closed:  # while the body was on its way
            await _send_error(answers.over(), send)
            return
        relay = self._relay(session, rest, scope=scope, body=body)
        if isinstance(relay, ErrorAnswer):
            await _send_error(relay, send)
            return
        await _deliver(relay, scope, receive=receive, send=send)

    def _session(self, path: str, headers: Headers) -> tuple[Session, str] | ErrorAnswer:
        """The session and the path that follows its secret."""
        if path.startswith(_PATH_PREFIX):
            secret, slash, rest = path.removeprefix(_PATH_PREFIX).partition("/")
            rest = slash + rest
        else:
            value = answers.value_of(headers, b"authorization") or b""
            secret = value[len(_BEARER) :].strip().decode("latin-1") if value.lower().startswith(_BEARER) else ""
            rest = path
        session = self._sessions.find(secret)
        if session is None:
            return answers.over() if self._sessions.was_closed(secret) else _UNKNOWN
        return session, rest

    def _relay(self, session: Session, rest: str, *, scope: Scope, body: bytes) -> Relay | ErrorAnswer:
        headers: Headers = scope["headers"]
        method: str = scope["method"]
        if session.tools is not None and rest.removesuffix("/") == mcp.PATH:
            return session.use_tools(session.tools, method, headers=headers, body=body)
        if not session.route.serves(method, rest):
            return answers.not_served(method)
        url = session.route.target(rest, query=scope["query_string"].decode("ascii", "replace"))
        if not session.route.is_call(method, rest):
            return session.passage(method, url, headers=headers, body=body)
        try:
            request = openai_chat.read_request(body)
        except openai_chat.BadBodyError as error:
            if session.route.stand_in is not None:
                return session.passage(method, url, headers=headers, body=body)
            return ErrorAnswer(400, str(error), "invalid_request_error")
        return session.call(
            Incoming(
                request,
                url=url,
                headers=headers,
                digest=hashlib.sha256(url.encode() + b"\0" + body).digest(),
                idempotency_key=answers.value_of(headers, b"idempotency-key"),
                says_retry=(answers.value_of(headers, b"x-stainless-retry-count") or b"0").strip() != b"0",
            )
        )


async def _body(headers: Headers, receive: Receive) -> bytes | ErrorAnswer | None:
    """The whole body; None if the program hung up before its end."""
    announced = answers.value_of(headers, b"content-length") or b"0"
    if announced.isdigit() and int(announced) > BODY_MAX_BYTES:
        return _TOO_LARGE
    parts = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > BODY_MAX_BYTES:
            return _TOO_LARGE
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send_error(answer: ErrorAnswer, send: Send) -> None:
    body = answer.body()
    headers = [answers.JSON_TYPE, (b"content-length", str(len(body)).encode())]
    if answer.status == 413:  # the rest of the body is not wanted
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _deliver(relay: Relay, scope: Scope, *, receive: Receive, send: Send) -> None:
    with relay.reader() as reader:
        watcher = asyncio.ensure_future(_until_gone(receive))
        watcher.add_done_callback(lambda _: reader.leave())
        try:
            head = await reader.head()
            if head is None:
                return
            headers = head.headers
            if head.length is not None:
                headers = [*headers, (b"content-length", str(head.length).encode())]
            await send({"type": "http.response.start", "status": head.status, "headers": headers})
            while data := await reader.read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if reader.gone:
                return
            if relay.broken:
                scope["extensions"][CUT]["cut"](abort=False)
                await asyncio.wait([watcher], timeout=_CUT_SEC)
                scope["extensions"][CUT]["cut"](abort=True)
                return
            await send({"type": "http.response.body", "body": b""})
            relay.delivered = relay.delivered or not reader.gone
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
