"""`rollbook serve` records the model calls of workflows that know nothing of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from rollbook.ledger.urls import SQLITE
from rollbook_client import RolloutResultResponse
from tests.support.documents import queries
from tests.support.model_server import Die, Hang, ModelServer, Reply, Say, Status, in_thread
from tests.support.processes import Deployment, until

KEY = "sk-the-trainers-own-key-0123"
WORKFLOW = """
    import httpx
    from rollbook import AgentWorkflow, Grader, get_rollout_context

    class Asking(AgentWorkflow):
        async def run(self, ctx):
            rollout = get_rollout_context()
            messages = list(ctx.prompt)
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {rollout.api_key}"}, verify=False) as http:
                for _ in range(ctx.metadata["turns"]):
                    url = f"{rollout.chat_completions_url}/chat/completions"
                    response = await http.post(url, json={"model": "policy", "messages": messages})
                    response.raise_for_status()
                    messages.append(response.json()["choices"][0]["message"])
            if ctx.metadata.get("names_url"):
                messages.append({"role": "user", "content": rollout.chat_completions_url})
            return messages

    class Fair(Grader):
        async def grade(self, ctx):
            ctx.set_reward(1.0)
"""


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with in_thread(ModelServer()) as server:
        yield server


async def run(deployment: Deployment, url: str, name: str, **metadata: object) -> RolloutResultResponse:
    async with deployment.client() as client:
        return await client.run_rollout(
            [{"role": "user", "content": "6 * 7"}], url, name, llm_api_key=KEY, metadata=metadata
        )


def serve(deployment: Deployment, *options: str) -> None:
    path = deployment.folder / "asking.py"
    path.write_text(textwrap.dedent(WORKFLOW))
    deployment.serve(*options, entrypoint=path)


async def test_one_select_gives_a_rollouts_calls_tokens_and_times(deployment: Deployment, model: ModelServer) -> None:
    model.script += [Say("6"), Say("42", usage={"prompt_tokens": 20, "completion_tokens": 5})]
    serve(deployment)
    await deployment.answering()
    result = await run(deployment, model.url, "r-1", turns=2)
    assert (result.status, result.sample and result.sample.reward) == ("success", 1.0)
    assert {received.headers["authorization"] for received in model.received} == {f"Bearer {KEY}"}
    (query,) = queries("docs/model-calls.md")
    ((name, status, _, agent_sec, grading_sec, *rest),) = deployment.rows(query)
    assert (name, status) == ("r-1", "success")
    assert agent_sec > 0
    assert grading_sec >= 0
    assert rest == [2, 0, 30, 8, 1.0, None]
    calls = deployment.rows("SELECT call, purpose, model, finish_reason FROM call_summary ORDER BY call")
    assert calls == [(1, "policy", "policy", "stop"), (2, "policy", "policy", "stop")]
    deployment.check_ledger()


async def test_a_model_that_fails_is_an_http_error(deployment: Deployment, model: ModelServer) -> None:
    serve(deployment)
    await deployment.answering()
    replies: dict[str, Reply] = {"says": Status(503, b'{"error": {"message": "overloaded"}}'), "dies": Die()}
    for name, model.default in replies.items():
        result = await run(deployment, model.url, name, turns=1)
        assert (result.status, result.err_category) == ("failure", "http_error")
        ((error,),) = deployment.rows("SELECT error FROM call_summary WHERE rollout_id = ?", name)
        assert result.err_message is not None
        assert f"its last model call failed: {error}" in result.err_message
        assert "/s/" not in result.err_message


@pytest.mark.parametrize("database", [SQLITE])  # what a runner is told is the same on each
async def test_without_model_calls_the_workflow_has_the_url_as_it_was_sent(
    deployment: Deployment, model: ModelServer
) -> None:
    model.default = Say("42")
    serve(deployment, "--no-model-calls")
    await deployment.answering()
    result = await run(deployment, model.url, "r-1", turns=1, names_url=True)
    assert result.sample is not None
    assert result.sample.messages[-1]["content"] == model.url
    assert deployment.number("SELECT count(*) FROM model_calls") == 0


async def test_a_runner_that_dies_leaves_the_calls_it_had_made(deployment: Deployment, model: ModelServer) -> None:
    model.script += [Say("6")]
    model.default = Hang()
    serve(deployment, "--max-attempts", "1")
    await deployment.answering()
    async with deployment.client() as client:
        handle = await client.run_rollout_async(
            [{"role": "user", "content": "6 * 7"}], model.url, "r-1", llm_api_key=KEY, metadata={"turns": 2}
        )
        await until(lambda: deployment.number("SELECT count(*) FROM model_calls"), what="a recorded call")
        deployment.kill("rollbook.scheduler.runner")
        result = await handle
    assert result.status == "failure"
    assert deployment.number("SELECT count(*) FROM model_calls") == 1
    deployment.check_ledger()
