"""Our client drives the reference server: every kind of ending, and a trainer that is killed."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from rollbook_client import RolloutClient, RolloutProtocolError, RolloutResultResponse, RolloutStatus

API_KEY = "reference-key"
CHAT_URL = "http://127.0.0.1:9/v1"
WAIT_SEC = 60.0

_TRAINER = """
import asyncio, sys
from pathlib import Path
from rollbook_client import RolloutClient

async def main(url, api_key, until, folder):
    client = RolloutClient(url=url, api_key=api_key)
    prompt = [{"role": "user", "content": "42"}]
    handles = [
        await client.run_rollout_async(
            prompt, "http://127.0.0.1:9/v1", f"{folder}/{n}".replace("/", "_"), label="42", metadata={"until": until}
        )
        for n in range(5)
    ]
    for number, handle in enumerate(handles):
        await asyncio.to_thread(Path(folder, str(number)).write_bytes, handle.save())
    print("saved", flush=True)
    await asyncio.gather(*handles)

asyncio.run(main(*sys.argv[1:]))
"""


class LosesTheFirstAnswer(httpx.AsyncHTTPTransport):
    """Connections of which the first breaks when the server has done what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.answered.append(response.status_code)
        if len(self.answered) == 1:
            await response.aclose()
            raise httpx.ReadError("the answer was lost", request=request)
        return response


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The reference server's URL. It inherits a socket that listens already, so the first request waits for it."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("reference_app.py")), str(listening.fileno()), API_KEY],
            pass_fds=[listening.fileno()],
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait(WAIT_SEC)


@pytest.fixture
async def client(url: str) -> AsyncIterator[RolloutClient]:
    async with asyncio.timeout(WAIT_SEC), RolloutClient(url=url, api_key=API_KEY) as client:
        yield client


async def _run(client: RolloutClient, rollout_id: str | None = None, **fields: Any) -> RolloutResultResponse:
    prompt = [{"role": "user", "content": "42"}]
    return await client.run_rollout(prompt, CHAT_URL, rollout_id or str(uuid4()), label="42", **fields)


async def test_a_graded_success(client: RolloutClient) -> None:
    outcome = await _run(client, extra_fields={"x": 1}, llm_api_key="sk-12345678901234")
    assert (outcome.status, outcome.err_message, outcome.err_category) == (RolloutStatus.SUCCESS, None, None)
    assert outcome.sample is not None
    assert (outcome.sample.reward, outcome.sample.label) == (1.0, "42")
    assert outcome.sample.messages[-1] == {"role": "assistant", "content": "42"}


async def test_a_failure(client: RolloutClient) -> None:
    outcome = await _run(client, metadata={"raise": "ValueError"})
    assert (outcome.status, outcome.err_category) == (RolloutStatus.FAILURE, "validation_error")
    assert outcome.sample is None
    assert "chosen failure" in (outcome.err_message or "")


async def test_an_agent_timeout(client: RolloutClient, tmp_path: Path) -> None:
    outcome = await _run(client, metadata={"until": str(tmp_path / "never")}, agent_timeout_sec=0.2)
    assert (outcome.status, outcome.err_category) == (RolloutStatus.FAILURE, "timeout")


async def test_a_cancelled_rollout(client: RolloutClient, tmp_path: Path) -> None:
    handle = await client.run_rollout_async(
        [], CHAT_URL, str(uuid4()), label="42", metadata={"until": str(tmp_path / "never")}
    )
    assert await handle.wait_for_running() is RolloutStatus.RUNNING
    answer = await client.cancel_rollout(handle.rollout_id)
    assert answer.dispositions == {handle.rollout_id: "cancelled_running"}
    outcome = await handle
    assert (outcome.status, outcome.sample, outcome.err_category) == (RolloutStatus.CANCELLED, None, None)
    again = await client.cancel_rollout(handle.rollout_id)
    assert again.dispositions == {handle.rollout_id: "not_found"}


async def test_a_lease_that_nobody_renews_expires(client: RolloutClient, tmp_path: Path) -> None:
    handle = await client.run_rollout_async(
        [], CHAT_URL, str(uuid4()), label="42", metadata={"until": str(tmp_path / "never")}
    )
    await handle.wait_for_running()
    handle.cancel()
    # The expiry cancels the execution, so the server becomes idle.
    await client.wait_idle(timeout_sec=WAIT_SEC, poll_interval_sec=0.1)
    outcome = await client.attach(handle.save())
    assert (outcome.status, outcome.err_category) == (RolloutStatus.FAILURE, "lease_expired")
    assert outcome.err_message == "polling lease expired"


async def test_a_duplicate_id_is_refused(client: RolloutClient) -> None:
    rollout_id = str(uuid4())
    await _run(client, rollout_id)
    with pytest.raises(RolloutProtocolError, match="already registered") as caught:
        await _run(client, rollout_id)
    assert caught.value.status_code == 409


async def test_an_answer_that_was_lost_is_no_second_admission(url: str) -> None:
    lossy = LosesTheFirstAnswer()
    async with httpx.AsyncClient(transport=lossy) as http, asyncio.timeout(WAIT_SEC):
        client = RolloutClient(url=url, api_key=API_KEY, http_client=http)
        # It knows no Idempotency-Key, so it cannot tell this call's own rollout from somebody else's.
        with pytest.raises(RolloutProtocolError, match="an earlier try of this call was admitted") as caught:
            await client.run_rollout_async([], CHAT_URL, str(uuid4()), label="42", idempotency_key="row-3")
    assert caught.value.status_code == 409
    assert lossy.answered == [202, 409]


async def test_an_id_that_needs_encoding_is_polled_under_its_own_name(client: RolloutClient) -> None:
    outcome = await _run(client, f"a?b #ä%2F {uuid4()}")
    assert outcome.status is RolloutStatus.SUCCESS


async def test_the_key_is_needed_and_sent(url: str, client: RolloutClient) -> None:
    health = await client.health()
    assert health["lifecycle"]["accepting_rollouts"] is True
    async with RolloutClient(url=url) as keyless:
        with pytest.raises(RolloutProtocolError, match="api_key") as caught:
            await keyless.health()
    assert caught.value.status_code == 401


async def test_many_rollouts_at_once(client: RolloutClient) -> None:
    outcomes = await asyncio.gather(*(_run(client) for _ in range(50)))
    assert [outcome.sample.reward for outcome in outcomes if outcome.sample is not None] == [1.0] * 50


async def test_a_killed_trainers_rollouts_are_finished_by_another_process(
    url: str, client: RolloutClient, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, url, API_KEY, str(until), str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert trainer.stdout is not None
        assert await asyncio.to_thread(trainer.stdout.readline) == b"saved\n"
    finally:
        trainer.kill()
        await asyncio.to_thread(trainer.communicate, timeout=WAIT_SEC)
    saved = [(tmp_path / str(number)).read_bytes() for number in range(5)]
    handles = [client.attach(each) for each in saved]
    for handle in handles:
        assert await handle.wait_for_running() is RolloutStatus.RUNNING
    until.touch()
    outcomes = await asyncio.gather(*handles)
    assert [(outcome.status, outcome.sample and outcome.sample.reward) for outcome in outcomes] == [
        ("success", 1.0)
    ] * 5
    assert {outcome.rollout_id for outcome in outcomes} == {
        json.loads(each)["admission"]["rollout_id"] for each in saved
    }
