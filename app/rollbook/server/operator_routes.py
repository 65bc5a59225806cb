"""The routes beside `/rollout`: health, and what operators read. Ordinary Litestar handlers."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse

from .answers import json_bytes
from .errors import wrong_shape
from .metrics import MEDIA_TYPE
from .openapi import openapi_document
from .pages import events_page, rollouts_page
from .query import EventsQuery, Position, RolloutsQuery, parse_query
from .service import ApiService
from .streams import event_stream

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "last-event-id"


def operator_routes(service: ApiService) -> list[HTTPRouteHandler]:
    """The handlers to register with the application."""

    @get("/health")
    async def health() -> ASGIResponse:
        return _json(await service.health())

    @get("/rollouts")
    async def rollouts(request: Request[Any, Any, Any]) -> ASGIResponse:
        query = parse_query(request.scope["query_string"], RolloutsQuery)
        return _json(await rollouts_page(service.ledger, query))

    @get("/events")
    async def events(request: Request[Any, Any, Any]) -> ASGIResponse:
        query = parse_query(request.scope["query_string"], EventsQuery)
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return _json(await events_page(service.ledger, after=query.after, limit=query.limit))
        frames = event_stream(
            service.ledger,
            service.pulse,
            after=_resume_after(request.headers.get(LAST_EVENT_ID), query.after),
            open_to_all=lambda: service.waiting,
            outages=service.outages,
        )
        streamed = service.meters.streamed(frames)
        return ASGIStreamingResponse(iterator=streamed, media_type=EVENT_STREAM, headers={"cache-control": "no-store"})

    @get("/metrics")
    async def metrics() -> ASGIResponse:
        headers = {"cache-control": "no-store"}
        return ASGIResponse(body=await service.metrics(), media_type=MEDIA_TYPE, headers=headers)

    @get(["/schema", "/schema/openapi.json"])
    async def schema() -> ASGIResponse:
        return ASGIResponse(body=_document(), media_type="application/json")

    return [health, metrics, rollouts, events, schema]


@cache
def _document() -> bytes:
    # Made for the first who asks, and for every application of this process: most never tell it.
    return json_bytes(openapi_document())


def _json(value: object) -> ASGIResponse:
    return ASGIResponse(body=json_bytes(value), media_type="application/json")


def _resume_after(last_event_id: str | None, after: int) -> int:
    """Where a stream begins: behind the last event that the client saw, else where its query says.

    Raises:
        ApiError: 422, the header is no position.
    """
    if not last_event_id:
        return after
    try:
        return msgspec.convert(last_event_id.strip(), Position, strict=False)
    except msgspec.ValidationError as error:
        message = "Last-Event-ID must be the id of an event of this stream"
        raise wrong_shape("header", "Last-Event-ID", msg=message) from error
