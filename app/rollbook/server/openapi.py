"""The OpenAPI document at `/schema`: every route, its parameters, bodies and statuses, as one table.

The schemas are made from the very structs that the routes decode and encode.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.version import rollbook_version
from rollbook_client.messages import (
    IDEMPOTENCY_KEY_HEADER,
    POLLING_LEASE_HEADER,
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutResultResponse,
    RolloutStatusResponse,
)

from .auth import COMMON_ENDINGS, OPERATOR_ENDINGS
from .errors import ErrorBody
from .health import Health
from .pages import EventsPage, RolloutsPage
from .query import EventsQuery, RolloutsQuery

type Json = dict[str, Any]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a route: its name, where it stands (path, header or query), schema and meaning."""

    name: str
    place: str
    schema: Json
    text: str
    required: bool = False


class Route(msgspec.Struct, frozen=True):
    """One route as it is documented; ``errors`` gives the meaning of each error status but 401."""

    method: str
    path: str
    summary: str
    status: int
    answer: type[msgspec.Struct] | None
    errors: dict[int, str]
    parameters: tuple[Parameter, ...] = ()
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    media: str = "application/json"
    """The type of the answer; ``text/plain`` has no schema but that it is text."""


_REFERENCE = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string"}
_ID = Parameter("rollout_id", "path", _TEXT, "The rollout's id, percent-encoded.", required=True)
_LEASE = Parameter(
    POLLING_LEASE_HEADER, "header", {"type": "string", "minLength": 1}, "The token of the admission.", required=True
)
_IDEMPOTENCY_KEY = Parameter(
    IDEMPOTENCY_KEY_HEADER,
    "header",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "The same request with the same key has the same answer again.",
)
_UNAVAILABLE = {503: "The ledger is not available now; retry."}
_NOT_FOUND = {404: "No such rollout."}
_WRONG_QUERY = {422: "A parameter is out of its range."}


def _parameters(kind: type[msgspec.Struct]) -> tuple[Parameter, ...]:
    """A query struct's fields."""
    (_,), components = msgspec.json.schema_components((kind,), ref_template=_REFERENCE)
    return tuple(
        Parameter(name, "query", schema, schema.pop("description", ""))
        for name, schema in components[kind.__name__]["properties"].items()
    )


ROUTES = (
    Route(
        "post",
        "/rollout",
        "Admit a rollout.",
        202,
        RolloutInitResponse,
        {
            400: "The body is no JSON, or nests too deep.",
            409: "The id is taken.",
            413: "The body is over the size limit.",
            422: "The body or the header has the wrong shape, or the key came with another request before.",
            429: "The queue is full; `Retry-After` says when to try again.",
            503: "Shutting down or draining, or the ledger is not available.",
        },
        parameters=(_IDEMPOTENCY_KEY,),
        body=RolloutInitRequest,
    ),
    Route(
        "get",
        "/rollout/{rollout_id}/result",
        "Renew the lease, wait for a change of status, tell the result.",
        200,
        RolloutResultResponse,
        {403: "The token is another rollout's.", **_NOT_FOUND, 422: "The lease header is missing.", **_UNAVAILABLE},
        parameters=(_ID, _LEASE),
    ),
    Route(
        "post",
        "/rollout/cancel",
        "Ask to end rollouts, selected by exactly one of `ids`, `prefix` and `all`.",
        200,
        CancelRolloutsResponse,
        {422: "Not exactly one selector, or the wrong shape.", 413: "The body is over the limit.", **_UNAVAILABLE},
        body=CancelRolloutsRequest,
    ),
    Route(
        "get",
        "/rollout/{rollout_id}/status",
        "Where a rollout stands; renews no lease.",
        200,
        RolloutStatusResponse,
        {**_NOT_FOUND, **_UNAVAILABLE},
        parameters=(_ID,),
    ),
    Route(
        "get",
        "/rollout/{rollout_id}/events",
        "A rollout's events after a seq.",
        200,
        EventsPage,
        {**_NOT_FOUND, 410: "The events are archived; `detail` says where.", **_WRONG_QUERY, **_UNAVAILABLE},
        parameters=(_ID, *_parameters(EventsQuery)),
    ),
    Route("get", "/health", "The deployment's health.", 200, Health, _UNAVAILABLE),
    Route(
        "get",
        "/rollouts",
        "Rollouts, the newest first.",
        200,
        RolloutsPage,
        {**_WRONG_QUERY, **_UNAVAILABLE},
        parameters=_parameters(RolloutsQuery),
    ),
    Route(
        "get",
        "/events",
        "All events after a position: a page, or with `Accept: text/event-stream` a stream.",
        200,
        EventsPage,
        {**_WRONG_QUERY, **_UNAVAILABLE},
        parameters=(
            *_parameters(EventsQuery),
            Parameter("Last-Event-ID", "header", _TEXT, "Where a stream resumes; overrides `after`."),
        ),
        streams=True,
    ),
    Route("get", "/metrics", "Metrics in Prometheus' text format.", 200, None, {}, media="text/plain"),
    Route("get", "/schema", "This document.", 200, None, {}),
)

_MESSAGES: tuple[type[msgspec.Struct], ...] = (
    *(route.answer for route in ROUTES if route.answer is not None),
    *(route.body for route in ROUTES if route.body is not None),
    ErrorBody,
)


def openapi_document() -> Json:
    """The whole document, ready to be encoded."""
    _, components = msgspec.json.schema_components(_MESSAGES, ref_template=_REFERENCE)
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rollbook", "version": rollbook_version()},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "operatorKey": {"type": "http", "scheme": "bearer", "description": "Where the server has one."},
            },
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route) -> Json:
    responses: Json = {str(route.status): {"description": "Done.", "content": _content(route.answer)}}
    if route.media != "application/json":
        responses[str(route.status)]["content"] = {route.media: {"schema": _TEXT}}
    if route.streams:
        responses[str(route.status)]["content"]["text/event-stream"] = {"schema": _TEXT}
    for status, text in sorted({401: "The key is missing or wrong.", **route.errors}.items()):
        responses[str(status)] = {"description": text, "content": _content(ErrorBody)}
    operation: Json = {
        "summary": route.summary,
        "operationId": f"{route.method}{route.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "responses": responses,
    }
    if route.path.rpartition("/")[2] in OPERATOR_ENDINGS | COMMON_ENDINGS:
        operation["security"] = [{}, {"key": []}, {"operatorKey": []}]
    if route.parameters:
        operation["parameters"] = [
            {"name": p.name, "in": p.place, "required": p.required, "description": p.text, "schema": p.schema}
            for p in route.parameters
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
    return operation


def _content(kind: type[msgspec.Struct] | None) -> Json:
    schema: Json = {"type": "object"} if kind is None else {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"application/json": {"schema": schema}}
