"""A rollout whose model endpoint failed says so, and no other does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from rollbook import GraderContext
from rollbook_client.statuses import RolloutErrorCategory, RolloutStatus
from tests.contract.backends.recorded import ask, recorded
from tests.support.model_server import Die, ModelServer, Raw, Reply, Say, Status
from tests.unit.backends.support import REPLY, Context

NOWHERE = "http://127.0.0.1:9/v1"


async def helpless(ctx: Context) -> Any:
    """A workflow that cannot do without its answer, and says nothing of why."""
    try:
        answer = (await ask(stream=True)).raise_for_status()
    except httpx.HTTPError as error:
        raise RuntimeError("no answer") from error
    if not answer.text.startswith("data: "):
        raise RuntimeError("no answer")
    raise RuntimeError("a strange answer")


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (Status(503, b'{"error": {"message": "overloaded"}}'), "http", "HTTP 503: overloaded"),
        (Die(), "connect", None),
        (Die(after=2), "broken_stream", None),
        (Raw([b"<html>hello</html>"]), "garbage", None),
    ],
    ids=["http", "connect", "broken_stream", "garbage"],
)
async def test_a_workflow_that_fails_after_its_model_did_is_an_http_error(
    reply: Reply, kind: str, said: str | None
) -> None:
    async with ModelServer(reply) as server, recorded(server.url, helpless) as runs:
        result = await runs.run()
    (call,) = runs.calls
    assert call.error_kind == kind
    assert said is None or call.error == said
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, RolloutErrorCategory.HTTP_ERROR)
    assert result.err_message == f"no answer (its last model call failed: {call.error})"


async def test_a_model_that_cannot_be_reached_is_an_http_error() -> None:
    async with recorded(NOWHERE, helpless) as runs:
        result = await runs.run()
    assert result.err_category is RolloutErrorCategory.HTTP_ERROR
    assert result.err_message is not None
    assert "cannot connect to the model server" in result.err_message


async def test_an_error_that_names_the_cause_already_does_not_name_it_twice() -> None:
    async def run(ctx: Context) -> Any:
        raise RuntimeError(f"gave up: HTTP 500: boom ({(await ask()).status_code})")

    async with ModelServer(Status(500, b'{"error": {"message": "boom"}}')) as server, recorded(server.url, run) as runs:
        result = await runs.run()
    assert result.err_category is RolloutErrorCategory.HTTP_ERROR
    assert result.err_message == "gave up: HTTP 500: boom (500)"


async def failing_with(error: BaseException, *, calls: int) -> Any:
    for number in range(calls):
        await ask(seed=number)
    raise error


@pytest.mark.parametrize(
    ("script", "error", "category"),
    [
        ([Status(500), Say()], RuntimeError("later"), RolloutErrorCategory.AGENT_ERROR),
        ([Say()], ValueError("own"), RolloutErrorCategory.VALIDATION_ERROR),
        ([], RuntimeError("own"), RolloutErrorCategory.AGENT_ERROR),
        ([Status(500)], TimeoutError("own"), RolloutErrorCategory.TIMEOUT),
        ([Say(), Status(500)], ValueError("own"), RolloutErrorCategory.HTTP_ERROR),
    ],
    ids=["a later call was answered", "all was answered", "no call", "a timeout", "the last call failed"],
)
async def test_the_last_call_decides(script: list[Reply], error: Exception, category: RolloutErrorCategory) -> None:
    async def run(ctx: Context) -> Any:
        return await failing_with(error, calls=len(script))

    async with ModelServer(*script) as server, recorded(server.url, run) as runs:
        result = await runs.run()
    assert result.err_category is category
    if category is not RolloutErrorCategory.HTTP_ERROR:
        assert result.err_message == str(error)


async def test_a_workflow_that_lives_with_a_failed_call_succeeds() -> None:
    async def run(ctx: Context) -> Any:
        assert (await ask()).status_code == 500
        return [REPLY]

    async with ModelServer(Status(500)) as server, recorded(server.url, run) as runs:
        assert (await runs.run()).status is RolloutStatus.SUCCESS


def grading(work: Callable[[], Awaitable[Any]]) -> Callable[[GraderContext], Awaitable[Any]]:
    async def grade(ctx: GraderContext) -> Any:
        await work()
        raise RuntimeError("cannot judge")

    return grade


async def nothing() -> None:
    """A grader that asks no model."""


async def test_a_grader_is_judged_by_its_own_calls() -> None:
    async def run(ctx: Context) -> Any:
        await ask()
        return [REPLY]

    async with ModelServer(Status(500)) as server, recorded(server.url, run, grading(nothing)) as runs:
        assert (await runs.run()).err_category is RolloutErrorCategory.AGENT_ERROR
    async with ModelServer(Say(), Status(500)) as server, recorded(server.url, run, grading(ask)) as runs:
        result = await runs.run()
    assert result.err_category is RolloutErrorCategory.HTTP_ERROR
    assert result.sample is not None
    assert result.sample.reward is None
