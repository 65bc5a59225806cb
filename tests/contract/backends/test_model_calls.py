"""Model calls of LocalBackend's rollouts are recorded, and workflows notice nothing of it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
from typing import Any

import httpx
import openai
import pytest

from rollbook import GraderContext, RolloutContext, RolloutSample, SampleSource
from rollbook.interception import threaded
from rollbook_client.statuses import RolloutStatus
from tests.contract.backends.recorded import BODY, KEY, ask, here, recorded
from tests.support.model_server import Hang, ModelServer, Received, Say, Status, in_thread
from tests.unit.backends.support import REPLY, WAIT_SEC, Context, make_backend, make_request

THREAD = threaded.THREAD_NAME
STEPS = [{"role": "user", "content": "6 * 7"}, REPLY]


async def test_each_call_is_recorded_with_its_tokens_and_times() -> None:
    async def run(ctx: Context) -> Any:
        await ask()
        await ask(temperature=0.5)
        return STEPS

    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    script = Say(usage=usage), Say()
    async with ModelServer(*script) as server, recorded(server.url, run) as runs:
        result = await runs.run()
    assert result.status is RolloutStatus.SUCCESS
    first, second = runs.calls
    assert (first.call, first.input_tokens, first.output_tokens, first.cached_input_tokens) == (1, 5, 2, 4)
    assert (second.call, second.input_tokens, second.output_tokens) == (2, 10, 3)
    assert {first.purpose, second.purpose} == {"policy"}
    assert (first.model, first.finish_reason, first.error_kind) == ("policy", "stop", None)
    assert first.started_at <= first.ended_at <= second.ended_at


async def test_the_model_gets_the_rollouts_key_and_url_and_the_workflow_neither() -> None:
    seen: list[RolloutContext] = []

    async def run(ctx: Context) -> Any:
        seen.append(here())
        await ask(seed=7)
        return STEPS

    async with ModelServer(Say()) as server, recorded(server.url, run) as runs:
        await runs.run()
        (received,) = server.received
    assert (received.path, received.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert received.json == {**BODY, "seed": 7}
    (ctx,) = seen
    assert ctx.rollout_id == "r"
    assert ctx.api_key is not None
    assert ctx.api_key in ctx.chat_completions_url
    assert KEY not in repr(vars(ctx))
    assert server.url not in ctx.chat_completions_url


async def test_a_workflow_with_credentials_of_its_own_keeps_them() -> None:
    seen: list[str | None] = []

    async def run(ctx: Context) -> Any:
        seen.append(here().api_key)
        headers = {"Authorization": "Bearer my-own-key", "X-Api-Key": "another", "Cookie": "a=b"}
        async with httpx.AsyncClient(headers=headers, verify=False) as client:
            await client.post(f"{here().chat_completions_url}/chat/completions", json=BODY)
        return STEPS

    async with ModelServer(default=Say()) as server, recorded(server.url, run) as runs:
        with RolloutContext(server.url):
            await runs.backend.execute(make_request())
        await runs.run()
    assert seen[0] is None
    assert seen[1] is not None
    for received in server.received:
        headers = received.headers
        assert (headers["authorization"], headers["x-api-key"], headers["cookie"]) == (
            "Bearer my-own-key",
            "another",
            "a=b",
        )


async def test_the_key_goes_where_the_workflow_puts_it_and_nowhere_else() -> None:
    async def run(ctx: Context) -> Any:
        url = f"{here().chat_completions_url}/chat/completions"
        async with httpx.AsyncClient(verify=False) as client:
            await client.post(url, json=BODY)
            await client.post(url, json={**BODY, "seed": 1}, headers={"Api-Key": str(here().api_key)})
        return STEPS

    async with ModelServer(default=Say()) as server, recorded(server.url, run) as runs:
        await runs.run()
    first, second = (received.headers for received in server.received)
    assert not {"authorization", "api-key"} & first.keys()
    assert second["api-key"] == KEY
    assert "authorization" not in second


async def test_what_is_no_chat_request_is_passed_on_and_not_recorded() -> None:
    answers: list[httpx.Response] = []

    async def run(ctx: Context) -> Any:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {here().api_key}"}) as client:
            answers.append(await client.post(here().chat_completions_url, json={"tokens": [1, 2]}))
            answers.append(await client.get(f"{here().chat_completions_url}/models"))
        return STEPS

    async with ModelServer(default=Status(202, b'{"tokens": [3]}')) as server, recorded(server.url, run) as runs:
        await runs.run()
        posted, listed = server.received
    assert [answer.json() for answer in answers] == [{"tokens": [3]}] * 2
    assert (posted.method, posted.path, posted.body) == ("POST", "/v1", b'{"tokens":[1,2]}')
    assert (listed.method, listed.path) == ("GET", "/v1/models")
    assert {received.headers["authorization"] for received in (posted, listed)} == {f"Bearer {KEY}"}
    assert runs.calls == []


async def test_without_recording_the_workflow_has_the_url_as_it_was_sent() -> None:
    seen: list[tuple[str, str | None]] = []

    async def run(ctx: Context) -> Any:
        seen.append((here().chat_completions_url, here().api_key))
        return STEPS

    with RolloutContext("http://policy.example/v1", KEY):
        await make_backend(run).execute(make_request())
    assert seen == [("http://policy.example/v1", KEY)]


@pytest.mark.parametrize("url", ["", "policy", "unix:/run/model.sock", "http://[broken"])
async def test_a_url_that_is_none_of_http_is_left_to_the_workflow(url: str) -> None:
    seen: list[str] = []

    async def run(ctx: Context) -> Any:
        seen.append(here().chat_completions_url)
        return STEPS

    async with recorded(url, run) as runs:
        assert (await runs.run()).status is RolloutStatus.SUCCESS
    assert seen == [url]
    assert runs.calls == []


async def started_and_closed() -> None:
    thread = threaded.EndpointThread()
    await thread.running()
    await thread.close()


async def test_a_rollout_whose_endpoint_cannot_start_runs_without_a_record(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def run(ctx: Context) -> Any:
        seen.append(here().chat_completions_url)
        return STEPS

    await started_and_closed()  # so that everything is imported
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Three are for the loop of the endpoint's thread; the socket that it would listen on is one too many.
    *_, fourth = descriptors = [os.dup(0) for _ in range(4)]
    for descriptor in descriptors:
        os.close(descriptor)
    async with recorded("http://127.0.0.1:9/v1", run) as runs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (fourth, limits[1]))
        try:
            result = await asyncio.wait_for(runs.run(), WAIT_SEC)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert result.status is RolloutStatus.SUCCESS
        assert seen == ["http://127.0.0.1:9/v1"]
        assert "rollout r runs without a record of its model calls" in caplog.text
        await runs.run()
        assert seen[1] != seen[0]


async def test_a_stream_passes_through_as_it_comes() -> None:
    gate = asyncio.Event()
    first: list[bool] = []

    async def run(ctx: Context) -> Any:
        client = openai.AsyncOpenAI(base_url=here().chat_completions_url, api_key=here().api_key)
        text = ""
        async with client:
            async for chunk in await client.chat.completions.create(**BODY, stream=True):
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                first.append(gate.is_set())
                gate.set()
        return [{"role": "assistant", "content": text}]

    async with ModelServer(Say("one two three", gate_in=gate)) as server, recorded(server.url, run) as runs:
        result = await runs.run()
    assert first[0] is False
    assert result.sample is not None
    assert result.sample.messages[-1]["content"] == "one two three"
    (call,) = runs.calls
    assert call.streamed
    assert call.first_chunk_at is not None
    assert (call.input_tokens, call.output_tokens) == (10, 3)


def test_a_workflow_that_blocks_its_event_loop_gets_its_answer() -> None:
    async def run(ctx: Context) -> Any:
        with httpx.Client(timeout=WAIT_SEC) as client:
            answer = client.post(f"{here().chat_completions_url}/chat/completions", json=BODY)  # noqa: ASYNC212
        return [answer.json()["choices"][0]["message"]]

    async def play(url: str) -> Any:
        async with recorded(url, run) as runs:
            return await runs.run(), runs.calls

    with in_thread(ModelServer(Say("blocked"))) as server:
        result, calls = asyncio.run(play(server.url))
    assert result.sample.messages[-1]["content"] == "blocked"
    assert len(calls) == 1


async def test_the_graders_calls_are_told_from_the_workflows() -> None:
    async def run(ctx: Context) -> Any:
        await ask()
        return STEPS

    async def grade(ctx: GraderContext) -> Any:
        ctx.set_reward(float((await ask(temperature=0)).json()["choices"][0]["message"]["content"]))

    async with ModelServer(Say(), Say("0.25")) as server, recorded(server.url, run, grade) as runs:
        result = await runs.run()
    assert result.sample is not None
    assert result.sample.reward == 0.25
    assert [(call.call, call.purpose) for call in runs.calls] == [(1, "policy"), (2, "grader")]


async def test_cancelling_a_rollout_ends_the_work_upstream_and_records_it() -> None:
    async def run(ctx: Context) -> Any:
        await ask()

    async with ModelServer(default=Hang()) as server, recorded(server.url, run) as runs:
        task = asyncio.create_task(runs.run())
        received = await asyncio.wait_for(server.wait_for(1), WAIT_SEC)
        runs.backend.cancel_rollouts(ids=["r"])
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WAIT_SEC)
        (call,) = runs.calls
        assert (call.error_kind, call.finish_reason) == ("aborted", None)
        await asyncio.wait_for(received.hung_up.wait(), WAIT_SEC)


async def test_a_deadline_ends_the_work_upstream_and_stays_a_timeout() -> None:
    async def run(ctx: Context) -> Any:
        await ask()

    async with ModelServer(default=Hang()) as server, recorded(server.url, run) as runs:
        result = await asyncio.wait_for(runs.run(agent_timeout_sec=0.3), WAIT_SEC)
        assert result.err_message is not None
        assert result.err_message.startswith("workflow exceeded its 0.3s deadline")
        assert [call.error_kind for call in runs.calls] in ([], ["aborted"])  # it may not have come so far


async def test_a_task_that_outlives_its_rollout_reaches_no_model() -> None:
    over = asyncio.Event()
    left: list[asyncio.Task[httpx.Response]] = []

    async def late() -> httpx.Response:
        await over.wait()
        return await ask()

    async def run(ctx: Context) -> Any:
        left.append(asyncio.create_task(late()))
        return STEPS

    async with ModelServer() as server, recorded(server.url, run) as runs:
        assert (await runs.run()).status is RolloutStatus.SUCCESS
        over.set()
        response = await asyncio.wait_for(left[0], WAIT_SEC)
        assert response.status_code == 410
        assert server.received == []
    assert runs.calls == []


async def test_many_rollouts_at_once_keep_their_calls_apart() -> None:
    def answer(received: Received) -> Say:
        return Say(received.json["messages"][0]["content"])

    async def run(ctx: Context) -> Any:
        messages = [{"role": "user", "content": ctx.prompt[0]["content"]}]
        return [(await ask(messages=messages)).json()["choices"][0]["message"]]

    async with ModelServer(default=answer) as server, recorded(server.url, run) as runs:
        prompts = [[{"role": "user", "content": f"number {number}"}] for number in range(20)]
        results = await asyncio.gather(*(runs.run(rollout_id=f"r-{n}", prompt=p) for n, p in enumerate(prompts)))
    answers = [result.sample.messages[-1]["content"] for result in results if result.sample is not None]
    assert answers == [f"number {number}" for number in range(20)]
    assert [call.call for call in runs.calls] == [1] * 20


async def test_shutting_down_leaves_no_thread_and_no_port() -> None:
    urls: list[str] = []

    async def run(ctx: Context) -> Any:
        urls.append(here().chat_completions_url)
        return STEPS

    async with ModelServer() as server:
        async with recorded(server.url, run) as runs:
            await runs.run()
            assert THREAD in {thread.name for thread in threading.enumerate()}
        assert THREAD not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(verify=False) as client:
                await client.get(urls[0])


async def test_a_backend_serves_several_event_loops_one_after_the_other() -> None:
    async def run(ctx: Context) -> Any:
        return [(await ask()).json()["choices"][0]["message"]]

    async with ModelServer(default=Say("again")) as server, recorded(server.url, run) as runs:
        await runs.run()
        await asyncio.to_thread(lambda: asyncio.run(runs.run()))
    assert [call.call for call in runs.calls] == [1, 1]


async def test_a_source_registered_by_the_workflow_is_its_rollouts_source() -> None:
    class Source(SampleSource):
        async def get_sample(self) -> RolloutSample:
            return RolloutSample(messages=STEPS)

    async def run(ctx: Context) -> None:
        here().set_sample_source(Source())

    ctx = RolloutContext("http://127.0.0.1:9/v1", KEY)
    async with recorded("", run) as runs:
        with ctx:
            outcome = await runs.backend.execute(make_request())
    assert outcome.result.sample is not None
    assert isinstance(ctx.sample_source, Source)


async def test_errors_of_the_model_pass_through_as_they_are() -> None:
    error = json.dumps({"error": {"message": "slow down", "type": "rate_limit"}}).encode()
    answers: list[httpx.Response] = []

    async def run(ctx: Context) -> Any:
        answers.extend([await ask(), await ask(temperature=1)])
        return STEPS

    script = Status(429, error, {"Retry-After": "3"}), Say("then this")
    async with ModelServer(*script) as server, recorded(server.url, run) as runs:
        result = await runs.run()
    assert result.status is RolloutStatus.SUCCESS
    refused, answered = answers
    assert (refused.status_code, refused.content, refused.headers["retry-after"]) == (429, error, "3")
    assert answered.json()["choices"][0]["message"]["content"] == "then this"
    assert [call.error_kind for call in runs.calls] == ["http", None]
    assert runs.calls[0].error == "HTTP 429: slow down"


async def test_a_rollout_that_asks_for_no_url_opens_no_session_and_one_that_is_over_gets_a_dead_one() -> None:
    contexts: list[RolloutContext] = []

    async def run(ctx: Context) -> Any:
        contexts.append(here())
        return STEPS

    async with ModelServer(default=Say()) as server, recorded(server.url, run) as runs:
        await runs.run()
        (ctx,) = contexts
        urls = await asyncio.gather(*(asyncio.to_thread(getattr, ctx, "chat_completions_url") for _ in range(8)))
        assert len(set(urls)) == 1
        assert (await ask(ctx)).status_code == 410
        assert server.received == []
