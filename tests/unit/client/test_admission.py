"""How a rollout is admitted: the request, its retries, its limit, and every answer that is refused."""

import asyncio
import math
from typing import Any

import httpx
import pytest

from rollbook_client import RolloutAdmissionTimeoutError, RolloutClient, RolloutProtocolError, RolloutStatus
from tests.unit.client import virtual_time
from tests.unit.client.scripted import CHAT_URL, URL, ScriptedServer, Step, admitted, full_queue, result


def test_the_request_carries_what_was_passed_and_nothing_else() -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer(admitted(), result("success"))
        await server.client().run_rollout(
            [{"role": "user", "content": "6 * 7"}],
            CHAT_URL,
            "r1",
            llm_api_key="sk",
            label="42",
            metadata={"row": 1},
            grade=False,
            agent_timeout_sec=1.5,
            grader_timeout_sec=0,
            extra_fields={"x": [None]},
        )
        return server

    request = virtual_time.run(main()).seen[0]
    assert (request.request.method, str(request.request.url)) == ("POST", f"{URL}/rollout")
    assert request.request.headers["Content-Type"] == "application/json"
    assert request.body == {
        "initial_messages": [{"role": "user", "content": "6 * 7"}],
        "chat_completions_url": CHAT_URL,
        "rollout_id": "r1",
        "llm_api_key": "sk",
        "label": "42",
        "metadata": {"row": 1},
        "grade": False,
        "agent_timeout_sec": 1.5,
        "grader_timeout_sec": 0,
        "extra_fields": {"x": [None]},
    }


def test_what_is_omitted_is_not_sent() -> None:
    async def main() -> Any:
        server = ScriptedServer(admitted(), result("success"))
        await server.client().run_rollout([], CHAT_URL, "r1")
        return server.seen[0].body

    assert virtual_time.run(main()) == {"initial_messages": [], "chat_completions_url": CHAT_URL, "rollout_id": "r1"}


def test_payloads_arrive_unchanged() -> None:
    messages = [{"role": "user", "content": "\x00 \ud800 🎲" + "x" * 2_000_000, "n": [10**40, 1e308, -0.0, True, None]}]

    async def main() -> Any:
        server = ScriptedServer(admitted(), result("success"))
        await server.client().run_rollout(messages, CHAT_URL, "r1")
        return server.seen[0].body["initial_messages"]

    assert virtual_time.run(main()) == messages


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    return circle


@pytest.mark.parametrize(
    "arguments",
    [
        {"rollout_id": "a/b"},
        {"rollout_id": ""},
        {"rollout_id": "\ud800"},
        {"rollout_id": 7},
        {"llm_api_key": ""},
        {"agent_timeout_sec": math.inf},
        {"grader_timeout_sec": math.nan},
        {"label": 42},
        {"initial_messages": "text"},
        {"metadata": {"score": math.nan}},
        {"metadata": {"score": [math.inf]}},
        {"extra_fields": {"object": object()}},
        {"metadata": _circle()},
    ],
)
def test_arguments_that_cannot_be_sent_are_value_errors_before_any_request(arguments: dict[str, Any]) -> None:
    async def main() -> None:
        server = ScriptedServer()
        fields = {"initial_messages": [], "chat_completions_url": CHAT_URL, "rollout_id": "r1"} | arguments
        with pytest.raises(ValueError, match="rollout request"):
            await server.client().run_rollout(**fields)
        assert server.seen == []

    virtual_time.run(main())


def test_a_full_queue_is_asked_again_after_what_it_says() -> None:
    async def main() -> ScriptedServer:
        server = ScriptedServer(
            full_queue("5"), full_queue(), full_queue("later"), full_queue("0"), full_queue("600"), admitted()
        )
        handle = await server.admit()
        assert handle.status is RolloutStatus.QUEUED
        handle.cancel()
        return server

    server = virtual_time.run(main())
    assert server.gaps_sec == [5.0, 1.0, 1.0, 0.05, 60.0]
    assert len({seen.request.content for seen in server.seen}) == 1


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError])
def test_transport_errors_are_raised_at_once_and_never_retried(kind: type[httpx.TransportError]) -> None:
    async def main() -> None:
        server = ScriptedServer(kind("broken"))
        with pytest.raises(kind):
            await server.admit()
        assert len(server.seen) == 1

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [200, 201, 301, 307, 400, 401, 403, 404, 409, 413, 422, 500, 502, 503, 504])
def test_any_other_status_is_a_protocol_error(status_code: int) -> None:
    async def main() -> None:
        answer = httpx.Response(status_code, headers={"Location": f"{URL}/elsewhere"}, json={"detail": "said why"})
        server = ScriptedServer(answer)
        with pytest.raises(RolloutProtocolError, match="said why") as caught:
            await server.admit()
        assert caught.value.status_code == status_code
        assert len(server.seen) == 1

    virtual_time.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(202, content=b""),
        httpx.Response(202, content=b"<html>"),
        httpx.Response(202, content=b"[" * 100_000),
        httpx.Response(202, json=[]),
        httpx.Response(202, json={"rollout_id": "r1"}),
        admitted("r2"),
        admitted(wait_sec=30, lease_sec=30),
        admitted(wait_sec=0),
        admitted(status="paused"),
    ],
)
def test_a_202_that_admits_nothing_usable_is_a_protocol_error(answer: httpx.Response) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError) as caught:
            await ScriptedServer(answer).admit()
        assert caught.value.status_code == 202

    virtual_time.run(main())


def test_a_validations_list_is_not_repeated_in_the_error() -> None:
    async def main() -> None:
        server = ScriptedServer(httpx.Response(422, json={"detail": [{"input": {"llm_api_key": "sk-secret"}}]}))
        with pytest.raises(RolloutProtocolError) as caught:
            await server.admit()
        assert "secret" not in str(caught.value)

    virtual_time.run(main())


def test_the_limit_bounds_the_whole_admission_and_says_that_nothing_was_admitted() -> None:
    async def main() -> None:
        server = ScriptedServer(full_queue("4"), full_queue("4"), full_queue("4"))
        started_at = virtual_time.now()
        with pytest.raises(RolloutAdmissionTimeoutError, match="had not admitted") as caught:
            await server.client(admission_timeout_sec=10).run_rollout([], CHAT_URL, "r1")
        assert caught.value.may_have_been_admitted is False
        assert caught.value.rollout_id == "r1"
        assert virtual_time.now() - started_at == pytest.approx(10)
        assert len(server.seen) == 3

    virtual_time.run(main())


def test_a_limit_that_is_over_during_a_request_says_it_may_have_been_admitted_and_cancels_nothing() -> None:
    async def main() -> None:
        server = ScriptedServer(full_queue("4"), Step(admitted(), takes_sec=30))
        with pytest.raises(RolloutAdmissionTimeoutError, match="may have admitted") as caught:
            await server.client(admission_timeout_sec=10).run_rollout([], CHAT_URL, "r1")
        assert caught.value.may_have_been_admitted is True
        assert [seen.request.url.path for seen in server.seen] == ["/rollout", "/rollout"]

    virtual_time.run(main())


@pytest.mark.parametrize("limit_sec", [0, -1])
def test_a_limit_that_is_over_already_sends_nothing(limit_sec: float) -> None:
    async def main() -> None:
        server = ScriptedServer()
        with pytest.raises(RolloutAdmissionTimeoutError) as caught:
            await server.client(admission_timeout_sec=limit_sec).run_rollout([], CHAT_URL, "r1")
        assert caught.value.may_have_been_admitted is False
        assert server.seen == []

    virtual_time.run(main())


def test_the_limit_does_not_bound_what_comes_after_the_admission() -> None:
    async def main() -> None:
        server = ScriptedServer(
            admitted(), Step(result("running"), takes_sec=30), Step(result("success"), takes_sec=30)
        )
        outcome = await server.client(admission_timeout_sec=10).run_rollout([], CHAT_URL, "r1")
        assert outcome.status is RolloutStatus.SUCCESS

    virtual_time.run(main())


def test_a_callers_own_timeout_is_not_taken_for_the_admissions() -> None:
    async def main() -> None:
        server = ScriptedServer(Step(admitted(), takes_sec=30))
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(5):
                await server.client(admission_timeout_sec=10).run_rollout([], CHAT_URL, "r1")
        assert not isinstance(caught.value, RolloutAdmissionTimeoutError)

    virtual_time.run(main())


@pytest.mark.parametrize("limit_sec", [math.inf, -math.inf, math.nan])
def test_a_limit_must_be_finite(limit_sec: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        RolloutClient(url=URL, admission_timeout_sec=limit_sec)
