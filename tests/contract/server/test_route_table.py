"""Every route with every method and condition, and the status it answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import msgspec
import pytest
from litestar import Litestar

from rollbook.server.app import build_app
from rollbook.server.service import ApiService
from rollbook.settings import ApiSettings
from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.support import KEY, QUEUE, Api, admission_body, serving
from tests.support.databases import DATABASES

LIMIT_BYTES = 2_000
NEW = admission_body("new")
DEEP = json.dumps(admission_body("deep", metadata={"a": 0})).replace('{"a": 0}', '{"a":' + "[" * 999 + "]" * 999 + "}")
LARGE = {**NEW, "label": "x" * LIMIT_BYTES}


class Case(msgspec.Struct, frozen=True):
    """A request to a server that holds the rollouts `open` and `done`, and its status."""

    status: int
    method: str
    path: str
    body: Any = None
    token_of: str | None = None
    detail: str | None = None


INVALID_LEASE = "invalid polling lease"
ONE_SELECTOR = "pass exactly one selector: ids, prefix, or all"
UNKNOWN = "unknown rollout_id"

CASES = [
    Case(202, "POST", "/rollout", NEW),
    Case(202, "POST", "/rollout", {**NEW, "initial_messages": []}),
    Case(202, "POST", "/rollout", {**NEW, "surprise": [1]}),
    Case(202, "POST", "/rollout", {**NEW, "agent_timeout_sec": 0, "grader_timeout_sec": -1.5}),
    Case(202, "POST", "/rollout", {**NEW, "agent_timeout_sec": 1e308}),
    Case(202, "POST", "/rollout", {**NEW, "agent_timeout_sec": None, "label": None, "llm_api_key": None}),
    Case(202, "POST", "/rollout", admission_body("a?b")),
    Case(202, "POST", "/rollout", admission_body("a b%")),
    Case(202, "POST", "/rollout", admission_body("cancel")),
    Case(400, "POST", "/rollout", b""),
    Case(400, "POST", "/rollout", b"{"),
    Case(400, "POST", "/rollout", b"\xff\xfe\xfd"),
    Case(400, "POST", "/rollout", b"[" * 1_100 + b"]" * 1_100),
    Case(400, "POST", "/rollout", json.dumps(NEW)[:-1].encode() + b',"label":NaN}'),
    Case(400, "POST", "/rollout", json.dumps(NEW)[:-1].encode() + b',"surprise":[Infinity]}'),
    Case(400, "POST", "/rollout", json.dumps(NEW)[:-1].encode() + b',"surprise":1e999}'),
    Case(400, "POST", "/rollout", json.dumps(NEW)[:-1].encode() + b',"agent_timeout_sec":1e999}'),
    Case(422, "POST", "/rollout", {}),
    Case(422, "POST", "/rollout", []),
    Case(422, "POST", "/rollout", b"null"),
    Case(422, "POST", "/rollout", {**NEW, "initial_messages": ["text"]}),
    Case(422, "POST", "/rollout", {**NEW, "initial_messages": None}),
    Case(422, "POST", "/rollout", {**NEW, "label": 42}),
    Case(422, "POST", "/rollout", {**NEW, "metadata": []}),
    Case(422, "POST", "/rollout", {**NEW, "grade": None}),
    Case(422, "POST", "/rollout", {**NEW, "llm_api_key": ""}),
    Case(422, "POST", "/rollout", {**NEW, "chat_completions_url": "\ud800"}),
    Case(422, "POST", "/rollout", admission_body("")),
    Case(422, "POST", "/rollout", admission_body("a/b")),
    Case(422, "POST", "/rollout", admission_body("a\\b")),
    Case(422, "POST", "/rollout", admission_body("..")),
    Case(422, "POST", "/rollout", admission_body("a\x00b")),
    Case(422, "POST", "/rollout", admission_body("a\ud800")),
    Case(422, "POST", "/rollout", admission_body("é" * 513)),
    Case(413, "POST", "/rollout", LARGE),
    Case(400, "POST", "/rollout", json.dumps(LARGE)[:-1].encode()),
    Case(422, "POST", "/rollout", {**LARGE, "grade": "maybe"}),
    Case(413, "POST", "/rollout", b"{" * (2 * LIMIT_BYTES + 1)),
    Case(409, "POST", "/rollout", admission_body("open"), detail="rollout_id is already registered"),
    Case(409, "POST", "/rollout", admission_body("done"), detail="rollout_id is already registered"),
    Case(405, "GET", "/rollout"),
    Case(405, "PUT", "/rollout"),
    Case(405, "DELETE", "/rollout"),
    Case(405, "HEAD", "/rollout"),
    Case(405, "OPTIONS", "/rollout"),
    Case(405, "BREW", "/rollout"),
    Case(200, "GET", "/rollout/open/result", token_of="open"),
    Case(200, "GET", "/rollout/done/result", token_of="done"),
    Case(422, "GET", "/rollout/open/result"),
    Case(422, "GET", "/rollout/open/result", token_of=""),
    Case(422, "GET", "/rollout/unknown/result"),
    Case(404, "GET", "/rollout/unknown/result", token_of="open", detail=UNKNOWN),
    Case(404, "GET", "/rollout/cancel/result", token_of="open", detail=UNKNOWN),
    Case(404, "GET", "/rollout/%FF/result", token_of="open", detail=UNKNOWN),
    Case(403, "GET", "/rollout/open/result", token_of="done", detail=INVALID_LEASE),
    Case(403, "GET", "/rollout/done/result", token_of="open", detail=INVALID_LEASE),
    Case(405, "POST", "/rollout/open/result"),
    Case(200, "POST", "/rollout/cancel", {"ids": ["unknown"]}),
    Case(200, "POST", "/rollout/cancel", {"ids": []}),
    Case(200, "POST", "/rollout/cancel", {"ids": ["a/b", "", ".."]}),
    Case(200, "POST", "/rollout/cancel", {"ids": ["\ud800"]}),
    Case(200, "POST", "/rollout/cancel", {"prefix": "\ud800"}),
    Case(200, "POST", "/rollout/cancel", {"prefix": ""}),
    Case(200, "POST", "/rollout/cancel", {"all": True}),
    Case(200, "POST", "/rollout/cancel", {"ids": ["unknown"], "prefix": None, "all": False, "surprise": 1}),
    Case(422, "POST", "/rollout/cancel", {}, detail=ONE_SELECTOR),
    Case(422, "POST", "/rollout/cancel", {"all": False}, detail=ONE_SELECTOR),
    Case(422, "POST", "/rollout/cancel", {"ids": [], "all": True}, detail=ONE_SELECTOR),
    Case(422, "POST", "/rollout/cancel", {"prefix": "", "all": True}, detail=ONE_SELECTOR),
    Case(422, "POST", "/rollout/cancel", {"ids": ["a"], "prefix": "a"}, detail=ONE_SELECTOR),
    Case(422, "POST", "/rollout/cancel", {"ids": "a"}),
    Case(422, "POST", "/rollout/cancel", {"ids": [1]}),
    Case(422, "POST", "/rollout/cancel", {"all": None}),
    Case(422, "POST", "/rollout/cancel", {"prefix": 5}),
    Case(422, "POST", "/rollout/cancel", []),
    Case(422, "POST", "/rollout/cancel", b""),
    Case(422, "POST", "/rollout/cancel", b"{"),
    Case(422, "POST", "/rollout/cancel", b'{"ids":[NaN]}'),
    Case(413, "POST", "/rollout/cancel", {"ids": ["x" * LIMIT_BYTES]}),
    Case(405, "GET", "/rollout/cancel"),
    Case(200, "GET", "/health"),
    Case(405, "POST", "/health"),
    Case(405, "HEAD", "/health"),
    Case(200, "GET", "/rollout/open/status"),
    Case(200, "GET", "/rollout/done/status"),
    Case(404, "GET", "/rollout/unknown/status", detail=UNKNOWN),
    Case(405, "POST", "/rollout/open/status"),
    Case(200, "GET", "/rollout/open/events"),
    Case(200, "GET", "/rollout/open/events?after=1&limit=1"),
    Case(404, "GET", "/rollout/unknown/events", detail=UNKNOWN),
    Case(422, "GET", "/rollout/open/events?limit=0"),
    Case(422, "GET", "/rollout/open/events?limit=many"),
    Case(422, "GET", "/rollout/open/events?after=-1"),
    Case(422, "GET", "/rollout/open/events?after=9223372036854775808"),
    Case(405, "POST", "/rollout/open/events"),
    Case(200, "GET", "/rollouts"),
    Case(200, "GET", "/rollouts?status=queued&queue=flow.py&prefix=o&before=100&limit=5"),
    Case(200, "GET", "/rollouts?prefix=%ED%A0%80"),
    Case(422, "GET", "/rollouts?status=lost"),
    Case(422, "GET", "/rollouts?limit=0"),
    Case(422, "GET", "/rollouts?limit=1001"),
    Case(422, "GET", "/rollouts?before=first"),
    Case(422, "GET", "/rollouts?before=9223372036854775808"),
    Case(405, "POST", "/rollouts"),
    Case(200, "GET", "/events"),
    Case(200, "GET", "/events?after=1&limit=1"),
    Case(422, "GET", "/events?after=-1"),
    Case(422, "GET", "/events?limit=10001"),
    Case(405, "PUT", "/events"),
    Case(200, "GET", "/schema"),
    Case(200, "GET", "/schema/openapi.json"),
    Case(404, "GET", "/schema/nothing"),
    Case(404, "GET", "/"),
    Case(404, "POST", "/nothing"),
    Case(404, "GET", "/rollout/open"),
    Case(404, "GET", "/rollout/open/nothing"),
    Case(404, "GET", "/rollout/open/result/more"),
    Case(404, "GET", "/rolloutopen/result"),
    Case(404, "GET", "/rollouts/open"),
]


@pytest.fixture
async def two_rollouts(database_url: str) -> AsyncIterator[tuple[Api, dict[str, str]]]:
    """An API that holds a rollout in its queue and a finished one, and their tokens."""
    async with serving(database_url, max_request_bytes=LIMIT_BYTES) as api:
        done = await api.admitted("done")
        await api.run("done")
        tokens = {"open": await api.admitted("open"), "done": done, "": ""}
        yield api, tokens


async def request(api: Api, case: Case, tokens: dict[str, str]) -> Any:
    body = case.body
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    headers = {} if case.token_of is None else {POLLING_LEASE_HEADER: tokens[case.token_of]}
    return await api.http.request(case.method, case.path, content=body, headers=headers)


def _name(case: Case) -> str:
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body)
    return f"{case.status} {case.method} {case.path} {'' if case.body is None else body[:60]!r} {case.token_of}"


def _databases(case: Case) -> tuple[str, ...]:
    """All, but for requests that are answered before any ledger is asked."""
    return DATABASES[:1] if case.status in {400, 405, 413, 422} else DATABASES


@pytest.mark.parametrize(
    "database, case",
    [pytest.param(name, case, id=f"{name}-{_name(case)}") for case in CASES for name in _databases(case)],
    indirect=["database"],
)
async def test_route_answers_the_status_of_its_condition(case: Case, two_rollouts: tuple[Api, dict[str, str]]) -> None:
    api, tokens = two_rollouts
    response = await request(api, case, tokens)
    assert response.status_code == case.status, response.text
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) > 0
    if case.status == 405:
        assert response.headers["allow"]
    if case.status >= 400 and case.method != "HEAD":
        detail = response.json()["detail"]
        if case.detail is not None:
            assert detail == case.detail
        elif case.status == 422:
            assert detail and all(set(item) == {"loc", "msg", "type"} for item in detail)
        else:
            assert isinstance(detail, str) and detail


@pytest.fixture(scope="module")
def guarded() -> Litestar:
    """An application that wants a key, and has no ledger: a request that went past its guard is answered 503 or 404."""
    return build_app(ApiService(None, ApiSettings(database_url="sqlite:///unused", queue=QUEUE, api_key=KEY)))


async def test_body_nested_a_thousand_deep_is_admitted_and_one_deeper_is_not(api: Api) -> None:
    at_the_limit = await api.http.post(
        "/rollout", content=DEEP.replace("[" * 999, "[" * 998).replace("]" * 999, "]" * 998)
    )
    assert at_the_limit.status_code == 202
    beyond = await api.http.post("/rollout", content=DEEP.replace('"deep"', '"deeper"'))
    assert beyond.status_code == 400


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/rollout"),
        ("GET", "/rollout/x/result"),
        ("POST", "/rollout/cancel"),
        ("GET", "/health"),
        ("GET", "/rollout/x/status"),
        ("GET", "/rollouts"),
        ("GET", "/events"),
        ("GET", "/schema"),
        ("GET", "/"),
        ("GET", "/nothing"),
        ("DELETE", "/rollout"),
        ("OPTIONS", "/health"),
        ("BREW", "/nothing/at/all"),
    ],
)
@pytest.mark.parametrize(
    "authorization",
    [None, "", KEY, f"bearer {KEY}", f"Bearer  {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}"],
)
async def test_request_without_the_exact_key_is_unauthorized_whatever_it_asks(
    guarded: Litestar, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    transport = httpx.ASGITransport(cast(Any, guarded))
    async with httpx.AsyncClient(transport=transport, base_url="http://api", verify=False) as http:
        response = await http.request(method, path, headers=headers, content=b"{")
    assert response.status_code == 401
    assert response.json() == {"detail": "unauthorized"}


async def test_request_with_the_key_is_routed(database_url: str) -> None:
    async with serving(database_url, api_key=KEY) as api:
        assert (await api.http.get("/health")).status_code == 200
        assert (await api.http.get("/nothing")).status_code == 404
        assert (await api.admit()).status_code == 202


async def test_every_documented_route_exists(api: Api) -> None:
    document = (await api.http.get("/schema")).json()
    assert document["openapi"].startswith("3.1")
    missing = []
    for path, operations in document["paths"].items():
        for method in operations:
            response = await api.http.request(method, path.replace("{rollout_id}", "r-1"), content=b"")
            if response.status_code == 405 or "Not Found" in response.text:
                missing.append(f"{method} {path}")
    assert not missing
