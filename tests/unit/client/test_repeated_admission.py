"""An admission whose caller brought an idempotency key is repeated through outages, in a bounded time."""

from typing import Any

import httpx
import pytest

from rollbook_client import (
    IDEMPOTENCY_KEY_HEADER,
    RolloutAdmissionTimeoutError,
    RolloutHandle,
    RolloutProtocolError,
    RolloutStatus,
)
from tests.unit.client import virtual_time
from tests.unit.client.scripted import CHAT_URL, ScriptedServer, Step, admitted, full_queue

KEY = "step-12/row-3"


def unavailable(status_code: int = 503, *, retry_after: str | None = None) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status_code, headers=headers, json={"detail": "said why"})


def known() -> httpx.Response:
    return httpx.Response(409, json={"detail": "rollout_id is already registered"})


async def admit(server: ScriptedServer, *, admission_timeout_sec: float | None = None) -> RolloutHandle:
    client = server.client(admission_timeout_sec=admission_timeout_sec)
    handle = await client.run_rollout_async([], CHAT_URL, "r1", idempotency_key=KEY)
    handle.cancel()
    return handle


def admits(*steps: Step | httpx.Response | Exception, **options: Any) -> ScriptedServer:
    """The server after the call, which must end with a handle."""

    async def main() -> ScriptedServer:
        server = ScriptedServer(*steps)
        assert (await admit(server, **options)).status is RolloutStatus.QUEUED
        return server

    return virtual_time.run(main())


def fails[E: Exception](
    kind: type[E], *steps: Step | httpx.Response | Exception, **options: Any
) -> tuple[E, ScriptedServer, float]:
    """The error, the server, and after how many seconds it came."""

    async def main() -> tuple[E, ScriptedServer, float]:
        server = ScriptedServer(*steps)
        started_at = virtual_time.now()
        with pytest.raises(kind) as caught:
            await admit(server, **options)
        return caught.value, server, round(virtual_time.now() - started_at, 6)

    return virtual_time.run(main())


@pytest.mark.parametrize(
    "outcome",
    [
        *(unavailable(status_code) for status_code in (502, 503, 504)),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("late"),
        httpx.ReadError("gone"),
        httpx.WriteError("gone"),
        httpx.ReadTimeout("late"),
        httpx.WriteTimeout("late"),
        httpx.RemoteProtocolError("cut"),
    ],
)
def test_what_may_pass_is_asked_again_with_the_same_request(outcome: httpx.Response | Exception) -> None:
    server = admits(outcome, outcome, admitted())
    assert server.gaps_sec == [0.25, 0.5]
    assert {seen.request.headers[IDEMPOTENCY_KEY_HEADER] for seen in server.seen} == {KEY}
    assert len({seen.request.content for seen in server.seen}) == 1


def test_retry_after_goes_before_the_back_off() -> None:
    server = admits(
        unavailable(retry_after="5"),
        unavailable(),
        unavailable(retry_after="600"),
        unavailable(retry_after="0"),
        unavailable(retry_after="soon"),
        admitted(),
    )
    assert server.gaps_sec == [5, 0.5, 60, 0.05, 1]


def test_outage_without_end_is_given_up_after_two_minutes_with_the_last_error() -> None:
    error, server, seconds = fails(RolloutProtocolError, *[unavailable(502)] * 19, unavailable(504))
    assert (error.status_code, seconds) == (504, 119.75)
    assert server.gaps_sec == [0.25, 0.5, 1, 2, 4, *[8] * 14]


def test_connection_that_stays_broken_is_given_up_after_two_minutes() -> None:
    _, _, seconds = fails(httpx.ConnectError, *[httpx.ConnectError("refused")] * 20)
    assert seconds == 119.75


def test_server_that_answers_in_between_begins_the_two_minutes_anew() -> None:
    outage = [unavailable(retry_after="60"), unavailable(retry_after="50")]
    server = admits(*outage, full_queue("5"), *outage, unavailable(), admitted())
    assert server.gaps_sec == [60, 50, 5, 60, 50, 1]


def test_admission_timeout_alone_bounds_the_repeats_where_there_is_one() -> None:
    server = admits(*[unavailable(retry_after="60")] * 4, admitted(), admission_timeout_sec=300)
    assert server.gaps_sec == [60, 60, 60, 60]
    error, _, seconds = fails(RolloutAdmissionTimeoutError, *[unavailable()] * 4, admission_timeout_sec=3)
    assert seconds == 3
    assert "HTTP 503" in str(error)
    assert "with the same idempotency_key" in str(error)


@pytest.mark.parametrize(
    ("outcome", "in_doubt"),
    [
        (httpx.ReadTimeout("late"), True),
        (httpx.WriteError("gone"), True),
        (unavailable(504), True),
        (unavailable(503), True),
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("late"), False),
        (full_queue("0.5"), False),
    ],
)
def test_timeout_says_whether_an_earlier_try_may_have_arrived(
    outcome: httpx.Response | Exception, in_doubt: bool
) -> None:
    error, _, _ = fails(RolloutAdmissionTimeoutError, outcome, full_queue("9"), admission_timeout_sec=3)
    assert error.may_have_been_admitted is in_doubt


@pytest.mark.parametrize(
    "outcome",
    [
        *(unavailable(status_code) for status_code in (307, 400, 401, 409, 413, 422, 500)),
        httpx.Response(202, content=b"<html>"),
        httpx.PoolTimeout("full"),
        httpx.LocalProtocolError("ours"),
        httpx.UnsupportedProtocol("what"),
    ],
)
def test_everything_else_is_final_at_once(outcome: httpx.Response | Exception) -> None:
    kind = type(outcome) if isinstance(outcome, Exception) else RolloutProtocolError
    _, server, _ = fails(kind, outcome)
    assert len(server.seen) == 1


def test_known_id_after_a_lost_answer_may_be_this_calls_own_and_says_so() -> None:
    error, _, _ = fails(RolloutProtocolError, httpx.ReadError("gone"), known())
    assert error.status_code == 409
    assert "an earlier try of this call was admitted" in str(error)


@pytest.mark.parametrize("before", [[], [httpx.ConnectError("refused")]])
def test_known_id_is_somebody_elses_where_no_try_can_have_arrived(before: list[Exception]) -> None:
    error, _, _ = fails(RolloutProtocolError, *before, known())
    assert "earlier try" not in str(error)


def test_draining_server_is_quoted() -> None:
    async def main() -> str:
        draining = httpx.Response(503, json={"detail": "rollout server is draining: it takes no new rollouts now"})
        with pytest.raises(RolloutProtocolError) as caught:
            await ScriptedServer(draining).admit()
        return str(caught.value)

    assert virtual_time.run(main()) == (
        "POST /rollout answered 503 (rollout server is draining: it takes no new rollouts now), not 202; "
        "the server cannot do this now; try again later"
    )
