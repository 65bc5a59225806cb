"""The routes below `/rollout`: admission, polling, cancelling, status and one rollout's events.

They are most of a server's requests, so they are one mounted ASGI handler: Litestar routes to it, and it answers
bytes without request objects, parameter models or response objects. It also tells `POST /rollout/cancel` from a
rollout whose id is `cancel`, which a tree of path components cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler, asgi
from litestar.types import HTTPScope, Receive, Scope, Send

from rollbook_client.identifiers import validate_idempotency_key
from rollbook_client.messages import (
    IDEMPOTENCY_KEY_HEADER,
    POLLING_LEASE_HEADER,
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    RolloutInitRequest,
)

from .answers import Answer, error_answer, json_bytes, send_answer
from .bodies import convert, parse, read_body, too_large
from .errors import SHUTTING_DOWN, ApiError, ClientGoneError, FieldError, as_api_error, wrong_shape
from .pages import events_page
from .query import EventsQuery, parse_query
from .service import ApiService

_LEASE_HEADER = POLLING_LEASE_HEADER.lower().encode()
_KEY_HEADER = IDEMPOTENCY_KEY_HEADER.lower().encode()

_Handler = Callable[[HTTPScope, Receive, str], Awaitable[Answer]]


def rollout_routes(service: ApiService) -> ASGIRouteHandler:
    """The handler to register with the application."""
    routes = RolloutRoutes(service)

    @asgi("/rollout", is_mount=True, copy_scope=False)
    async def rollout(scope: Scope, receive: Receive, send: Send) -> None:
        await routes(scope, receive, send)

    return rollout


class RolloutRoutes:
    """The ASGI application behind the mount; the mount leaves it `/`, `/cancel/`, `/{id}/result/` and so on."""

    def __init__(self, service: ApiService) -> None:
        self._service = service
        self._limit_bytes = service.settings.max_request_bytes
        self._collection: dict[str, dict[str, _Handler]] = {
            "": {"POST": self._admit},
            "cancel": {"POST": self._cancel},
        }
        self._members: dict[str, dict[str, _Handler]] = {
            "result": {"GET": self._result},
            "status": {"GET": self._status},
            "events": {"GET": self._events},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1008, "reason": "this server speaks plain HTTP only"})
            return
        try:
            answer = await self._answer(scope, receive)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if self._service.waiting:
                raise
            # The server stops and gave this request its last chance: say so, rather than an error 500.
            answer = error_answer(ApiError(503, SHUTTING_DOWN))
        except Exception as error:
            answer = error_answer(as_api_error(error, self._service.outages, rollout_id=_rollout_of(scope)))
        await send_answer(send, answer)

    def _answer(self, scope: HTTPScope, receive: Receive) -> Awaitable[Answer]:
        path = scope["path"]
        parts = path.split("/")
        scope["path"] = f"/rollout{path.rstrip('/')}"  # the mount took its name off; access logs want it whole
        handlers = None
        rollout_id = ""
        if parts[0] == "" and parts[-1] == "":
            if len(parts) == 4:
                rollout_id = parts[1]
                handlers = self._members.get(parts[2])
            elif len(parts) <= 3:
                handlers = self._collection.get(parts[1])
        if handlers is None:
            raise ApiError(404, "Not Found")
        handler = handlers.get(scope["method"])
        if handler is None:
            raise ApiError(405, "Method Not Allowed", headers=((b"allow", ", ".join(handlers).encode()),))
        return handler(scope, receive, rollout_id)

    async def _admit(self, scope: HTTPScope, receive: Receive, _: str) -> Answer:
        body = await read_body(scope, receive, limit_bytes=self._limit_bytes)
        request = convert(parse(body), RolloutInitRequest)
        key = _idempotency_key(scope)
        if len(body) > self._limit_bytes:
            raise too_large(self._limit_bytes)
        return Answer(202, json_bytes(await self._service.admit(request, idempotency_key=key)))

    async def _result(self, scope: HTTPScope, receive: Receive, rollout_id: str) -> Answer:
        token = b""
        for name, value in scope["headers"]:
            if name == _LEASE_HEADER:
                token = value
                break
        if not token:
            raise wrong_shape("header", POLLING_LEASE_HEADER, msg="this header is required", kind="missing")
        return Answer(200, await self._service.poll(rollout_id, token.decode("latin-1")))

    async def _cancel(self, scope: HTTPScope, receive: Receive, _: str) -> Answer:
        body = await read_body(scope, receive, limit_bytes=self._limit_bytes)
        try:
            document = parse(body)
        except ApiError as error:
            # Unlike an admission's, this body has one status for all that is wrong with it.
            raise ApiError(422, (FieldError(("body",), str(error.detail), "json_invalid"),)) from error
        request = convert(document, CancelRolloutsRequest)
        if len(body) > self._limit_bytes:
            raise too_large(self._limit_bytes)
        found = await self._service.cancel(request)
        return Answer(200, json_bytes(CancelRolloutsResponse(dispositions=dict(found))))

    async def _status(self, scope: HTTPScope, receive: Receive, rollout_id: str) -> Answer:
        return Answer(200, json_bytes(await self._service.status(rollout_id)))

    async def _events(self, scope: HTTPScope, receive: Receive, rollout_id: str) -> Answer:
        query = parse_query(scope["query_string"], EventsQuery)
        state = await self._service.state(rollout_id)
        page = await events_page(self._service.ledger, after=query.after, limit=query.limit, rollout_id=rollout_id)
        if not page.events and (archived := await self._service.ledger.reader.archived(state.number)) is not None:
            raise ApiError(410, f"the events of this rollout are archived in {archived}")
        return Answer(200, json_bytes(page))


def _rollout_of(scope: HTTPScope) -> str | None:
    """The rollout that a request's path names."""
    parts = scope["path"].split("/")  # as `_answer` left it: `/rollout/{id}/result`
    return parts[2] if len(parts) == 4 else None


def _idempotency_key(scope: HTTPScope) -> str | None:
    """The request's idempotency key, if it has one.

    Raises:
        ApiError: 422, there are several, or it is none that can be kept.
    """
    keys = [value for name, value in scope["headers"] if name == _KEY_HEADER]
    if not keys:
        return None
    if len(keys) > 1:
        raise wrong_shape("header", IDEMPOTENCY_KEY_HEADER, msg="the header came more than once; pass one key")
    key = keys[0].decode("latin-1")
    try:
        validate_idempotency_key(key)
    except ValueError as error:
        raise wrong_shape("header", IDEMPOTENCY_KEY_HEADER, msg=str(error)) from error
    return key
