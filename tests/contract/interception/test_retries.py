"""The same body again: joined to what is in flight, answered with what never arrived, or sampled anew."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest

from rollbook.interception import Request
from rollbook.interception.endpoint import Endpoint
from rollbook.interception.retries import KEPT_SEC
from rollbook.interception.session import Session
from tests.contract.interception.policies import Recording, chat, until_waiting
from tests.support.model_server import Hang, ModelServer, Received, Say, Status

KEY = "sk-the-rollouts-own-key"
RETRY = {"x-stainless-retry-count": "1"}
FIRST = {"x-stainless-retry-count": "0"}


async def post(
    client: httpx.AsyncClient, session: Session, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    return await client.post(f"{session.base_url}/chat/completions", json=chat(**fields), headers=headers)


def text(answer: httpx.Response) -> str:
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def numbered(received: Received) -> Say:
    return Say(f"sample {received.number}")


async def hang_up(task: asyncio.Task[httpx.Response]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_same_body_is_a_new_sample_unless_it_says_that_it_is_a_retry(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    policy = Recording()
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, policy)
        assert text(await post(client, session, FIRST)) == "sample 1"
        assert text(await post(client, session, FIRST)) == "sample 2"
        assert text(await post(client, session, RETRY)) == "sample 2"  # the one before it
        assert text(await post(client, session)) == "sample 3"
    assert len(policy.calls) == 3


async def test_same_idempotency_key_gets_the_same_answer(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, policy)
        answers = [text(await post(client, session, {"Idempotency-Key": key})) for key in ("a", "b", "a", "b", "c")]
    assert answers == ["sample 1", "sample 2", "sample 1", "sample 2", "sample 3"]
    assert len(policy.calls) == 3


async def test_another_body_is_no_retry(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, Recording())
        await post(client, session)
        assert text(await post(client, session, RETRY, text="another")) == "sample 2"


async def test_another_rollout_shares_no_answers(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    async with ModelServer(default=numbered) as server:
        await post(client, endpoint.open(server.url, KEY, Recording()))
        other = endpoint.open(server.url, KEY, Recording())
        assert text(await post(client, other, RETRY)) == "sample 2"


async def test_retry_joins_the_call_in_flight(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    gate = asyncio.Event()
    policy = Recording()
    async with ModelServer(Say("the only sample", gate=gate)) as server:
        session = endpoint.open(server.url, KEY, policy)
        first = asyncio.create_task(post(client, session))
        await server.wait_for(1)
        second = asyncio.create_task(post(client, session, RETRY))
        await until_waiting(session, 2)
        gate.set()
        assert text(await first) == text(await second) == "the only sample"
        assert len(server.received) == 1
    assert len(policy.calls) == 1


async def test_stream_that_is_joined_is_had_from_its_start(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    gate = asyncio.Event()
    async with ModelServer(Say("one two three", gate_in=gate)) as server:
        session = endpoint.open(server.url, KEY, Recording())
        first = asyncio.create_task(post(client, session, streamed=True))
        await server.wait_for(1)
        second = asyncio.create_task(post(client, session, RETRY, streamed=True))
        await until_waiting(session, 2)
        gate.set()
        whole = (await first).content
        assert (await second).content == whole
        assert whole.endswith(b"data: [DONE]\n\n")


async def test_two_programs_with_the_same_question_get_two_samples(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    gate = asyncio.Event()

    def answer(received: Received) -> Say:
        return Say(f"sample {received.number}", gate=gate)

    async with ModelServer(default=answer) as server:
        session = endpoint.open(server.url, KEY, Recording())
        tasks = [asyncio.create_task(post(client, session)) for _ in range(2)]
        await server.wait_for(2)
        gate.set()
        assert {text(await task) for task in tasks} == {"sample 1", "sample 2"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_program_that_hung_up_finds_its_call_still_in_flight(
    endpoint: Endpoint, client: httpx.AsyncClient, streamed: bool
) -> None:
    gate = asyncio.Event()
    policy = Recording()
    async with ModelServer(Say("worth waiting for", gate=gate)) as server:
        session = endpoint.open(server.url, KEY, policy)
        first = asyncio.create_task(post(client, session, streamed=streamed))
        await server.wait_for(1)
        await hang_up(first)
        await until_waiting(session, 0)
        assert policy.left_calls == policy.requests
        second = asyncio.create_task(post(client, session, streamed=streamed))  # says nothing of a retry
        await until_waiting(session, 1)
        assert policy.left_calls == []
        gate.set()
        assert "worth" in (await second).text
        assert len(server.received) == 1
    assert len(policy.calls) == 1


async def test_answer_that_never_arrived_is_given_again(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    gate = asyncio.Event()
    policy = Recording()
    async with ModelServer(Say("late", gate=gate), Say("another")) as server:
        session = endpoint.open(server.url, KEY, policy)
        first = asyncio.create_task(post(client, session))
        await server.wait_for(1)
        await hang_up(first)
        await until_waiting(session, 0)
        gate.set()
        await policy.recorded(1)
        assert policy.left_calls == policy.requests
        assert text(await post(client, session)) == "late"
        assert policy.left_calls == []
        assert text(await post(client, session)) == "another"  # that one had arrived


async def test_failure_is_never_given_again(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(Status(429), Say("now")) as server:
        session = endpoint.open(server.url, KEY, policy)
        key = {"Idempotency-Key": "k"}
        assert (await post(client, session, key)).status_code == 429
        assert text(await post(client, session, {**key, **RETRY})) == "now"
    assert [call.error is None for call in policy.calls] == [False, True]


async def test_retry_of_a_failure_is_not_joined_to_its_twin(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    gate = asyncio.Event()
    async with ModelServer(Say("the twin's", gate=gate), Status(429), Say("its own")) as server:
        session = endpoint.open(server.url, KEY, Recording())
        twin = asyncio.create_task(post(client, session, FIRST))
        await server.wait_for(1)
        assert (await post(client, session, FIRST)).status_code == 429
        assert text(await post(client, session, RETRY)) == "its own"
        gate.set()
        assert text(await twin) == "the twin's"


async def test_failure_of_one_key_does_not_have_the_retry_of_another_sampled_again(
    endpoint: Endpoint, client: httpx.AsyncClient
) -> None:
    gate = asyncio.Event()
    policy = Recording()
    async with ModelServer(Say("the first's", gate=gate), Status(429), Say("the second's")) as server:
        session = endpoint.open(server.url, KEY, policy)
        first = asyncio.create_task(post(client, session, {"Idempotency-Key": "a"}))
        await server.wait_for(1)
        assert (await post(client, session, {"Idempotency-Key": "b"})).status_code == 429
        await hang_up(first)
        await until_waiting(session, 0)
        again = asyncio.create_task(post(client, session, {"Idempotency-Key": "a", **RETRY}))
        await until_waiting(session, 1)
        gate.set()
        assert text(await again) == "the first's"
        assert text(await post(client, session, {"Idempotency-Key": "b", **RETRY})) == "the second's"
        assert len(server.received) == 3
    assert [call.error is None for call in policy.calls] == [False, True, True]


async def test_call_nobody_comes_back_for_ends_and_is_recorded_as_aborted(client: httpx.AsyncClient) -> None:
    endpoint = Endpoint(orphan_sec=0.05)
    await endpoint.start()
    policy = Recording()
    try:
        async with ModelServer(Hang()) as server:
            session = endpoint.open(server.url, KEY, policy)
            task = asyncio.create_task(post(client, session))
            received = await server.wait_for(1)
            await hang_up(task)
            call = await policy.recorded(1)
            async with asyncio.timeout(10):
                await received.hung_up.wait()
    finally:
        await endpoint.close()
    assert call.error is not None
    assert (call.error.kind, "hung up" in call.error.message) == ("aborted", True)


async def test_answers_kept_for_retries_are_bounded(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.interception.retries.KEPT_MAX_CALLS", 2)
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, Recording())
        for question in ("one", "two", "three"):
            await post(client, session, text=question)
        assert text(await post(client, session, RETRY, text="three")) == "sample 3"
        assert text(await post(client, session, RETRY, text="one")) == "sample 4"


async def test_kept_answers_do_not_keep_their_conversations(endpoint: Endpoint, client: httpx.AsyncClient) -> None:
    policy = Recording()
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, policy)
        await post(client, session, text="unforgettable")
        policy.requests.clear()
        await until_waiting(session, 0)
        gc.collect()
        held = [
            item for item in gc.get_objects() if isinstance(item, Request) and "unforgettable" in f"{item.messages}"
        ]
        assert not held
        assert text(await post(client, session, RETRY, text="unforgettable")) == "sample 1"


async def test_answers_are_kept_for_a_while_only(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.interception.retries.KEPT_SEC", 0.0)
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, Recording())
        await post(client, session)
        assert text(await post(client, session, RETRY)) == "sample 2"


async def test_answer_is_kept_its_whole_time_whatever_became_of_earlier_ones(
    endpoint: Endpoint, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier answers that went for lack of room have their time too, and leave their places to later ones."""
    monkeypatch.setattr("rollbook.interception.retries.KEPT_MAX_CALLS", 1)
    loop = asyncio.get_running_loop()
    passed_sec, time = 0.0, loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed_sec)
    async with ModelServer(default=numbered) as server:
        session = endpoint.open(server.url, KEY, Recording())
        for number in range(50):
            await post(client, session, text=f"{number}")
            gc.collect(1)  # so that the next one may lie in its place; all of memory would take seconds
        passed_sec = KEPT_SEC / 2
        assert text(await post(client, session, text="last")) == "sample 51"
        passed_sec = KEPT_SEC + 1.0
        for _ in range(10):
            await asyncio.sleep(0)
        assert text(await post(client, session, RETRY, text="last")) == "sample 51"
