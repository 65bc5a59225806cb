"""What agents and trainers send comes back unchanged, or as the reference answers it; nothing costs a reward."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollbook.ledger.codec import loads
from tests.contract.server.support import Api, admission_body

LONE = "\ud800"
STRANGE: list[Any] = [
    "\x00",
    "a\u2028b\U0001f600",
    "x" * 2_000_000,
    1e308,
    -0.0,
    2**64,
    -(10**400),
    {"": {"\x00": [None, True, 1.5]}},
]


def sample(content: Any, **fields: Any) -> bytes:
    body = {
        "messages": [{"role": "assistant", "content": content}],
        "label": "42",
        "reward": 0.5,
        "remove_sample": False,
        "metrics": {"turns": 1},
        "extra_fields": {"x": content},
        **fields,
    }
    return json.dumps(body).encode()


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:20])
async def test_strange_values_come_back_unchanged(api: Api, value: Any) -> None:
    body = admission_body(metadata={"value": value}, initial_messages=[{"content": value}])
    response = await api.http.post("/rollout", content=json.dumps(body))
    assert response.status_code == 202
    (event,) = await api.ledger.reader.events_page()
    request = loads(event.payload)["request"]
    assert request["metadata"] == {"value": value}
    assert request["initial_messages"] == [{"content": value}]
    await api.run(sample=sample(value))
    answer = (await api.poll(response.json()["polling_lease_token"])).json()
    assert answer["sample"] == json.loads(sample(value))


async def test_lone_surrogates_of_a_request_are_admitted_and_kept(api: Api) -> None:
    body = admission_body(
        label=LONE, metadata={LONE: LONE}, initial_messages=[{"content": LONE}], extra_fields={"a": LONE}
    )
    response = await api.http.post("/rollout", content=json.dumps(body))
    assert response.status_code == 202
    (event,) = await api.ledger.reader.events_page()
    request = loads(event.payload)["request"]
    assert (request["label"], request["metadata"]) == (LONE, {LONE: LONE})
    assert request["initial_messages"] == [{"content": LONE}]
    assert (await api.http.get("/rollouts")).status_code == 200
    page = await api.http.get("/rollout/r-1/events")
    assert json.loads(page.content)["events"][0]["payload"]["label"] == LONE


async def test_sample_that_has_no_utf8_form_keeps_label_reward_and_removal(api: Api) -> None:
    token = await api.admitted()
    await api.run(sample=sample(LONE, label=f"a{LONE}", remove_sample=True), reduced=True)
    response = await api.poll(token)
    assert response.json()["sample"] == {
        "messages": [],
        "label": "a?",
        "reward": 0.5,
        "remove_sample": True,
        "metrics": {},
        "extra_fields": {},
    }
    page = await api.http.get("/rollout/r-1/events")
    finished = [event for event in json.loads(page.content)["events"] if event["type"] == "rollout_finished"]
    assert finished[0]["payload"]["sample"]["messages"] == [{"role": "assistant", "content": LONE}]


async def test_error_message_with_a_lone_surrogate_is_answered_without_it(api: Api) -> None:
    token = await api.admitted()
    await api.run(status="failure", sample=None, err_message=f"bad {LONE}!", err_category="agent_error")
    assert (await api.poll(token)).json()["err_message"] == "bad ?!"


async def test_cancelling_an_id_with_a_lone_surrogate_finds_nothing(api: Api) -> None:
    response = await api.http.post("/rollout/cancel", content=json.dumps({"ids": [LONE]}))
    assert json.loads(response.content) == {"dispositions": {LONE: "not_found"}}
