"""Awkward payloads from the trainer through HTTP, ledger, runner and ledger back to the trainer."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rollbook_client import POLLING_LEASE_HEADER
from tests.support.databases import DATABASES, NewLedger
from tests.support.ledger import ledger_path
from tests.support.processes import CHAT_URL, LIMIT_SEC, Deployment, deployed

BIG = "é" * 1_000_000  # 2 MB in UTF-8
NUL = "before\x00after \x01\x1f\x7f"
HUGE = 2**70
AWKWARD: dict[str, Any] = {
    "nul": NUL,
    "big": BIG,
    "float": 1e308,
    "small": 5e-324,
    "minus": -1e308,
    "int": HUGE,
    "minus int": -HUGE,
    "edge": 2**63,
    "text": "\u2028 \ufeff \U0001f600 \ufffe \"'\\",
    "nested": [[[[[{"deep": [None, True, 1.5, ""]}]]]]],
    "": {"": ""},
}
NOTHING_TO_SHOW = {"call_summary", "cancel_summary", "cancellation_log", "lease_losses", "open_rollouts"}
SURROGATE = "half \ud83d of a pair"


@pytest.fixture(scope="module", params=DATABASES)
def deployment(
    request: pytest.FixtureRequest, new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with deployed(request.param, new_ledger, tmp_path_factory.mktemp("payloads")) as deployment:
        deployment.api()
        deployment.scheduler()
        yield deployment


async def run(deployment: Deployment, rollout_id: str, **fields: Any) -> dict[str, Any]:
    """Admit and poll by plain HTTP and JSON, so that no client of ours has a part in what comes back."""
    await deployment.answering()
    async with (
        asyncio.timeout(LIMIT_SEC),
        httpx.AsyncClient(base_url=deployment.url, timeout=LIMIT_SEC, verify=False) as http,
    ):
        body = {"rollout_id": rollout_id, "chat_completions_url": CHAT_URL, "initial_messages": [], **fields}
        admission = await http.post("/rollout", content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert admission.status_code == 202, admission.text
        headers = {POLLING_LEASE_HEADER: admission.json()["polling_lease_token"]}
        while True:
            answer = await http.get(f"/rollout/{rollout_id}/result", headers=headers)
            assert answer.status_code == 200, answer.text
            result: dict[str, Any] = json.loads(answer.content)
            if result["status"] in ("success", "failure", "cancelled"):
                return result


def recorded(deployment: Deployment, rollout_id: str, kind: str) -> Any:
    """The payload of a rollout's event, as text and as what it says."""
    payload: str = deployment.number(
        "SELECT e.payload FROM events e JOIN rollouts r ON r.number = e.number WHERE r.rollout_id = ? AND e.type = ?",
        rollout_id,
        kind,
    )
    return json.loads(payload)


def assert_views_read(deployment: Deployment) -> None:
    """Every view, of a file by the `sqlite3` that anybody has."""
    if deployment.on_postgres:
        views = [row[0] for row in deployment.rows("SELECT viewname FROM pg_views WHERE schemaname = 'public'")]
        assert len(views) >= 5
        for view in views:
            assert deployment.rows(f"SELECT * FROM {view}") or view in NOTHING_TO_SHOW, view
        return
    views = [row[0] for row in deployment.rows("SELECT name FROM sqlite_master WHERE type = 'view'")]
    assert len(views) >= 5
    for view in views:
        done = subprocess.run(
            ["sqlite3", "-readonly", "-bail", str(ledger_path(deployment.database_url)), f"SELECT * FROM {view}"],
            capture_output=True,
            timeout=LIMIT_SEC,
        )
        assert (done.returncode, done.stderr) == (0, b""), view
        if view not in NOTHING_TO_SHOW:
            assert done.stdout.decode("utf-8", "strict").strip(), view


async def test_messages_metadata_and_samples_come_back_unchanged(deployment: Deployment) -> None:
    prompt = [{"role": "user", "content": NUL, "awkward": AWKWARD}]
    sample = {"extra_fields": AWKWARD, "metrics": {"large": 1e308, "int": HUGE}}
    metadata = {"text": BIG, "sample": sample}
    result = await run(deployment, "whole", initial_messages=prompt, metadata=metadata, label=BIG)
    assert result["status"] == "success", result["err_message"]
    assert result["sample"]["messages"] == [*prompt, {"role": "assistant", "content": BIG}]
    assert result["sample"]["extra_fields"] == AWKWARD
    assert result["sample"]["metrics"] == {"large": 1e308, "int": HUGE}
    assert isinstance(result["sample"]["metrics"]["int"], int)
    assert result["sample"]["reward"] == 1.0

    request = recorded(deployment, "whole", "rollout_admitted")["request"]
    assert (request["initial_messages"], request["metadata"], request["label"]) == (prompt, metadata, BIG)
    assert recorded(deployment, "whole", "rollout_finished")["sample"] == result["sample"]
    assert_views_read(deployment)
    deployment.check_ledger()


async def test_lone_surrogates_stay_in_the_ledger_and_cost_no_reward(deployment: Deployment) -> None:
    metadata = {"text": SURROGATE}
    result = await run(deployment, "half", initial_messages=[{"role": "user", "content": SURROGATE}], metadata=metadata)
    assert result["status"] == "success", result["err_message"]
    # As the reference answers a sample whose messages have no form in UTF-8.
    assert result["sample"] == {
        "messages": [],
        "label": None,
        "reward": 0.0,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }
    request = recorded(deployment, "half", "rollout_admitted")["request"]
    assert request["initial_messages"][0]["content"] == SURROGATE
    messages = recorded(deployment, "half", "rollout_finished")["sample"]["messages"]
    assert [message["content"] for message in messages] == [SURROGATE, SURROGATE]
    assert_views_read(deployment)
    deployment.check_ledger()


@pytest.mark.parametrize("text", [NUL, SURROGATE, BIG], ids=["nul", "surrogate", "big"])
async def test_error_messages_and_labels_break_no_view(
    deployment: Deployment, request: pytest.FixtureRequest, text: str
) -> None:
    rollout_id = f"raises-{request.node.callspec.id}"
    result = await run(deployment, rollout_id, label=text, metadata={"raise": text})
    assert (result["status"], result["err_category"]) == ("failure", "agent_error")
    assert result["err_message"].encode("utf-8", "replace") == text.encode("utf-8", "replace")
    assert recorded(deployment, rollout_id, "rollout_admitted")["request"]["label"] == text
    label, message = deployment.rows("SELECT label, err_message FROM reward_outcomes WHERE rollout_id = ?", rollout_id)[
        0
    ]
    assert "\x00" not in label + message
    assert 0 < len((label + message).encode()) <= 2 * 8_192
    assert_views_read(deployment)
    deployment.check_ledger()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_without_a_json_form_are_refused(deployment: Deployment, number: str) -> None:
    await deployment.answering()
    body = (
        f'{{"rollout_id": "nan", "chat_completions_url": "x", "initial_messages": [], "metadata": {{"x": {number}}}}}'
    )
    async with httpx.AsyncClient(base_url=deployment.url, verify=False) as http:
        answer = await http.post("/rollout", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500
        assert (await http.get("/rollout/nan/status")).status_code == 404
