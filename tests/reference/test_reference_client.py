"""The reference's client against Rollbook in both shapes: graded, failing, cancelled and lease-expired rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from osmosis_ai.rollout.client import RolloutClient, RolloutProtocolError

from rollbook.ledger.urls import POSTGRES, SQLITE
from tests.support.databases import NewLedger
from tests.support.processes import CHAT_URL, LIMIT_SEC, Deployment, deployed, until

API_KEY = "a-key-for-the-server"
KEY_VARIABLE = "TEST_SERVER_KEY"
WAIT_SEC = 0.5
LEASE_SEC = 2.0
PROMPT: list[dict[str, Any]] = [{"role": "user", "content": "6 x 7?"}]


@pytest.fixture(scope="module", params=[("serve", SQLITE), ("serve", POSTGRES), ("embedded", SQLITE)], ids="-".join)
def deployment(
    request: pytest.FixtureRequest, new_ledger: NewLedger, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    shape, database = request.param
    with deployed(database, new_ledger, tmp_path_factory.mktemp("reference"), **{KEY_VARIABLE: API_KEY}) as deployment:
        if shape == "serve":
            times = ("--result-wait", str(WAIT_SEC), "--lease-timeout", str(LEASE_SEC))
            deployment.serve("--api-key-env", KEY_VARIABLE, *times)
        else:
            deployment.embedded(
                api_key=API_KEY, result_wait_timeout_sec=WAIT_SEC, polling_lease_timeout_sec=LEASE_SEC, queue="chosen"
            )
        yield deployment


@pytest.fixture
async def client(deployment: Deployment) -> AsyncIterator[RolloutClient]:
    await deployment.answering(api_key=API_KEY)
    client = RolloutClient(url=deployment.url, api_key=API_KEY)
    async with asyncio.timeout(LIMIT_SEC):
        yield client
        await client.aclose()


async def run(client: RolloutClient, **fields: Any) -> Any:
    return await client.run_rollout(PROMPT, CHAT_URL, str(uuid4()), **fields)


async def test_graded_rollout(client: RolloutClient, deployment: Deployment) -> None:
    outcome = await run(client, label="42", metadata={"text": "42"}, extra_fields={"x": 1}, llm_api_key="sk-0123456789")
    assert (outcome.status, outcome.err_message, outcome.err_category) == ("success", None, None)
    assert [message["content"] for message in outcome.sample.messages] == ["6 x 7?", "42"]
    assert (outcome.sample.reward, outcome.sample.label) == (1.0, "42")
    wrong = await run(client, label="42", metadata={"text": "43"})
    assert (wrong.status, wrong.sample.reward) == ("success", 0.0)
    ungraded = await run(client, metadata={"text": "42"}, grade=False)
    assert (ungraded.status, ungraded.sample.reward) == ("success", None)


async def test_failing_rollouts(client: RolloutClient) -> None:
    failed = await run(client, label="42", metadata={"raise": "no luck"})
    assert (failed.status, failed.err_category, failed.err_message) == ("failure", "agent_error", "no luck")
    assert failed.sample is None
    grader = await run(client, label="42", metadata={"text": "42", "grade": {"raise": "no grade"}})
    assert (grader.status, grader.err_category, grader.err_message) == ("failure", "agent_error", "no grade")
    assert (grader.sample.messages[-1]["content"], grader.sample.reward) == ("42", None)
    late = await run(client, label="42", metadata={"until": "never"}, agent_timeout_sec=0.2)
    assert (late.status, late.err_category) == ("failure", "timeout")
    assert "workflow exceeded its 0.2s deadline" in late.err_message


async def test_cancelled_rollout(client: RolloutClient) -> None:
    rollout_id = str(uuid4())
    handle = await client.run_rollout_async(PROMPT, CHAT_URL, rollout_id, label="42", metadata={"until": "never"})
    assert await handle.wait_for_running() == "running"
    answer = await client.cancel_rollout(rollout_id)
    assert answer.dispositions == {rollout_id: "cancelled_running"}
    outcome = await handle.wait_for_completion()
    assert (outcome.status, outcome.err_message, outcome.err_category, outcome.sample) == (
        "cancelled",
        "cancelled",
        None,
        None,
    )
    assert (await client.cancel_rollout(rollout_id)).dispositions == {rollout_id: "not_found"}


class HeldPolls(httpx.AsyncHTTPTransport):
    """Holds back every GET until it is told to let them go: a trainer that was cut off for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            await self.let_go.wait()
        return await super().handle_async_request(request)


async def test_lease_expired_rollout(client: RolloutClient, deployment: Deployment) -> None:
    rollout_id = str(uuid4())
    polls = HeldPolls()
    async with httpx.AsyncClient(transport=polls) as http:
        cut_off = RolloutClient(url=deployment.url, api_key=API_KEY, http_client=http)
        handle = await cut_off.run_rollout_async(PROMPT, CHAT_URL, rollout_id, label="42", metadata={"until": "never"})
        status = "SELECT status FROM rollouts WHERE rollout_id = ?"
        await until(lambda: deployment.number(status, rollout_id) == "failure", what="the end of the lease")
        polls.let_go.set()
        outcome = await handle.wait_for_completion()
    assert (outcome.status, outcome.err_category) == ("failure", "lease_expired")
    assert (outcome.err_message, outcome.sample) == ("polling lease expired", None)
    idle = await client.wait_idle(timeout_sec=LIMIT_SEC, poll_interval_sec=0.1)
    assert idle["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 0}


async def test_many_rollouts_at_once(client: RolloutClient, deployment: Deployment) -> None:
    outcomes = await asyncio.gather(*(run(client, label=str(n), metadata={"text": str(n)}) for n in range(50)))
    assert [(outcome.status, outcome.sample.reward) for outcome in outcomes] == [("success", 1.0)] * 50
    health = await client.health()
    assert health["lifecycle"]["accepting_rollouts"] is True
    deployment.check_ledger()


async def test_duplicate_id_and_wrong_key_are_told_as_the_client_expects(
    client: RolloutClient, deployment: Deployment
) -> None:
    rollout_id = str(uuid4())
    await client.run_rollout(PROMPT, CHAT_URL, rollout_id, label="42", metadata={"text": "42"})
    with pytest.raises(RolloutProtocolError) as duplicate:
        await client.run_rollout(PROMPT, CHAT_URL, rollout_id, label="42")
    assert duplicate.value.status_code == 409
    async with httpx.AsyncClient(verify=False) as http:
        stranger = RolloutClient(url=deployment.url, api_key="another-key", http_client=http)
        with pytest.raises(RolloutProtocolError) as refused:
            await stranger.health()
    assert refused.value.status_code == 401
