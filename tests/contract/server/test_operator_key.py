"""A server with an operator key: which key opens which route, whatever spelling of it the router understands."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from rollbook.server.openapi import ROUTES
from rollbook_client.messages import POLLING_LEASE_HEADER
from tests.contract.server.support import KEY, Api, admission_body, serving

OPERATOR_KEY = "o" * 20

FOR_OPERATORS = {"/rollouts", "/events", "/rollout/{rollout_id}/events", "/metrics"}
FOR_BOTH = {"/health", "/schema"}

SPELLINGS = [
    "/rollouts",
    "/rollouts/",
    "//rollouts",
    "/%72ollouts",
    "/rollouts?limit=5",
    "/events",
    "///events//",
    "/event%73",
    "/rollout/r-1/events",
    "/rollout/r-1/events/",
    "//rollout//r-1//events",
    "/rollout/r-1%2Fevents",
    "/rollout/r-1/e%76ents?after=0",
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def guarded(database_url: str) -> AsyncIterator[Api]:
    """An API with both keys that holds `r-1`; its HTTP client sends no key by itself."""
    async with serving(database_url, api_key=KEY, operator_api_key=OPERATOR_KEY) as api:
        await api.admitted()
        del api.http.headers["authorization"]
        yield api


async def test_every_route_answers_to_its_keys_and_to_no_other(guarded: Api) -> None:
    for route in ROUTES:
        path = route.path.replace("{rollout_id}", "r-1")
        opened = set()
        for key in (KEY, OPERATOR_KEY, ""):
            headers = bearer(key) if key else {}
            if (await guarded.http.request(route.method, path, headers=headers)).status_code != 401:
                opened.add(key)
        expected = {OPERATOR_KEY} if route.path in FOR_OPERATORS else {KEY}
        assert opened == (expected | {OPERATOR_KEY} if route.path in FOR_BOTH else expected), route.path


@pytest.mark.parametrize("path", SPELLINGS)
async def test_trainers_key_opens_no_spelling_of_an_operators_route(guarded: Api, path: str) -> None:
    url = f"http://api{path}"  # a path that begins with two slashes alone would pass for a host
    refused = await guarded.http.get(url, headers=bearer(KEY))
    assert (refused.status_code, refused.json()) == (401, {"detail": "unauthorized"})
    assert (await guarded.http.get(url, headers=bearer(OPERATOR_KEY))).status_code == 200


async def test_operators_key_admits_polls_and_cancels_nothing(guarded: Api) -> None:
    headers = bearer(OPERATOR_KEY)
    before = await guarded.seq()
    answers = [
        await guarded.http.post("/rollout", json=admission_body("r-2"), headers=headers),
        await guarded.http.get("/rollout/r-1/result", headers={**headers, POLLING_LEASE_HEADER: "token"}),
        await guarded.http.post("/rollout/cancel", json={"all": True}, headers=headers),
        await guarded.http.get("/nothing", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 401]
    assert await guarded.seq() == before


async def test_operators_key_alone_guards_only_the_operators_routes(database_url: str) -> None:
    async with serving(database_url, operator_api_key=OPERATOR_KEY) as api:
        assert (await api.admit()).status_code == 202
        assert (await api.http.get("/health")).status_code == 200
        assert (await api.http.get("/events")).status_code == 401
        answer: httpx.Response = await api.http.get("/events", headers=bearer(OPERATOR_KEY))
        assert [event["type"] for event in answer.json()["events"]] == ["rollout_admitted"]


async def test_document_tells_which_routes_an_operators_key_opens(guarded: Api) -> None:
    document = (await guarded.http.get("/schema", headers=bearer(KEY))).json()
    told = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if {"operatorKey": []} in operation.get("security", [])
    }
    assert told == (FOR_OPERATORS | FOR_BOTH) & set(document["paths"])
