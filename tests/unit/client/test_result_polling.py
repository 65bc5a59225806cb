"""One result GET after the other: what is sent, what is retried and until when, what is final."""

import httpx
import pytest

from rollbook_client import POLLING_LEASE_HEADER, RolloutProtocolError, RolloutResultResponse, RolloutStatus
from tests.unit.client import virtual_time
from tests.unit.client.scripted import LEASE_TOKEN, URL, ScriptedServer, Step, admitted, result


def _gateway(status_code: int = 502) -> httpx.Response:
    return httpx.Response(status_code, content=b"<html>bad gateway</html>")


def _run(*steps: Step | httpx.Response | Exception) -> tuple[RolloutResultResponse, ScriptedServer]:
    """The outcome after an admission answered by the first step."""

    async def main() -> tuple[RolloutResultResponse, ScriptedServer]:
        server = ScriptedServer(*steps)
        return await (await server.admit()), server

    return virtual_time.run(main())


def _fails[E: Exception](kind: type[E], *steps: Step | httpx.Response | Exception) -> tuple[E, ScriptedServer, float]:
    """The error, the server, and the seconds from the admission's request to the error."""

    async def main() -> tuple[E, ScriptedServer, float]:
        server = ScriptedServer(*steps)
        handle = await server.admit()
        with pytest.raises(kind) as caught:
            await handle
        return caught.value, server, round(virtual_time.now() - server.seen[0].at, 6)

    return virtual_time.run(main())


def test_each_poll_sends_the_lease_and_allows_the_servers_wait_plus_ten_seconds() -> None:
    _, server = _run(admitted(wait_sec=7), result("running"), result("success"))
    for seen in server.seen[1:]:
        assert (seen.request.method, str(seen.request.url)) == ("GET", f"{URL}/rollout/r1/result")
        assert seen.request.headers[POLLING_LEASE_HEADER] == LEASE_TOKEN
        assert set(seen.request.extensions["timeout"].values()) == {17.0}


def test_polls_follow_each_other_until_a_terminal_status() -> None:
    outcome, server = _run(
        admitted(),
        Step(result("queued"), takes_sec=30),
        result("running"),
        result("queued"),
        result("unknown"),
        result("running"),
        result("grading"),
        result("failure", err_message="no", err_category="agent_error"),
    )
    assert (outcome.status, outcome.err_message, outcome.err_category) == ("failure", "no", "agent_error")
    assert len(server.seen) == 8


def test_a_sample_is_read_as_it_was_sent() -> None:
    sample = {
        "messages": [{"role": "assistant", "content": "\x00 🎲", "big": 10**40}],
        "label": "42",
        "reward": 1,
        "remove_sample": False,
        "metrics": {"turns": 1.5},
        "extra_fields": {"a": [1, None]},
    }
    outcome, _ = _run(admitted(), result("success", sample=sample))
    assert outcome.sample is not None
    assert outcome.sample.messages == sample["messages"]
    assert (outcome.sample.label, outcome.sample.reward) == ("42", 1.0)
    assert (outcome.sample.metrics, outcome.sample.extra_fields) == ({"turns": 1.5}, {"a": [1, None]})


def test_a_lone_surrogate_does_not_cost_the_sample() -> None:
    body = rb'{"rollout_id":"r1","status":"success","sample":{"messages":[{"content":"\ud800"}],"reward":0.5}}'
    outcome, _ = _run(admitted(), httpx.Response(200, content=body))
    assert outcome.sample is not None
    assert (outcome.sample.messages, outcome.sample.reward) == ([{"content": "\ud800"}], 0.5)


def test_a_broken_connection_is_retried_after_a_tenth_and_half_a_second() -> None:
    outcome, server = _run(admitted(), httpx.ReadError("1"), httpx.RemoteProtocolError("2"), result("success"))
    assert outcome.status is RolloutStatus.SUCCESS
    assert server.gaps_sec == [0, 0.1, 0.5]
    assert {seen.request.headers[POLLING_LEASE_HEADER] for seen in server.seen[1:]} == {LEASE_TOKEN}


def test_a_third_broken_connection_is_raised() -> None:
    error, server, _ = _fails(
        httpx.ConnectError, admitted(), httpx.ReadError("1"), httpx.ReadTimeout("2"), httpx.ConnectError("3")
    )
    assert str(error) == "3"
    assert len(server.seen) == 4


def test_gateway_errors_are_retried_six_times_and_the_last_is_raised_with_its_status() -> None:
    error, server, _ = _fails(RolloutProtocolError, admitted(), *[_gateway()] * 5, _gateway(503), _gateway(504))
    assert error.status_code == 504
    assert server.gaps_sec == [0, 0.25, 0.5, 1, 2, 4, 8]


def test_both_plans_are_counted_apart_within_one_poll() -> None:
    _, server = _run(
        admitted(),
        httpx.ReadError("1"),
        _gateway(),
        httpx.ReadError("2"),
        _gateway(),
        result("success"),
    )
    assert server.gaps_sec == [0, 0.1, 0.25, 0.5, 0.5]


def test_each_poll_has_new_plans() -> None:
    broken = [httpx.ReadError("1"), httpx.ReadError("2")]
    _, server = _run(admitted(), *broken, result("running"), *broken, result("success"))
    assert server.gaps_sec == [0, 0.1, 0.5, 0, 0.1, 0.5]


@pytest.mark.parametrize("error", [httpx.ConnectTimeout("late"), httpx.WriteTimeout("late"), httpx.PoolTimeout("late")])
def test_other_timeouts_are_final_at_once(error: httpx.TimeoutException) -> None:
    raised, server, _ = _fails(type(error), admitted(), error)
    assert raised is error
    assert len(server.seen) == 2


@pytest.mark.parametrize("status_code", [201, 202, 204, 302, 400, 401, 403, 404, 409, 422, 429, 500, 501])
def test_other_statuses_are_final_at_once(status_code: int) -> None:
    error, server, _ = _fails(RolloutProtocolError, admitted(), httpx.Response(status_code, json={"detail": "why"}))
    assert error.status_code == status_code
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, content=b""),
        httpx.Response(200, content=b"\xff"),
        httpx.Response(200, json=None),
        httpx.Response(200, json={"rollout_id": "r1"}),
        httpx.Response(200, content=b'{"rollout_id":"r1","status":"success","sample":{"reward":NaN}}'),
        result("success", "r2"),
        result("paused"),
        result("success", sample={"reward": "high"}),
    ],
)
def test_an_invalid_body_is_final_at_once(answer: httpx.Response) -> None:
    error, server, _ = _fails(RolloutProtocolError, admitted(), answer)
    assert error.status_code == 200
    assert len(server.seen) == 2


def test_a_retry_that_does_not_fit_before_the_lease_ends_is_not_started() -> None:
    # wait 1 + grace 10 exceeds a lease of 3 from the start.
    error, server, _ = _fails(httpx.ReadError, admitted(wait_sec=1, lease_sec=3), httpx.ReadError("first"))
    assert str(error) == "first"
    assert len(server.seen) == 2


def test_back_offs_stop_where_the_next_whole_request_would_outlast_the_lease() -> None:
    # A request takes up to 40 s of a lease of 45: back-offs of 0.25, 0.5, 1 and 2 fit, the next 4 do not.
    _, server, _ = _fails(RolloutProtocolError, admitted(wait_sec=30, lease_sec=45), *[_gateway()] * 5)
    assert server.gaps_sec == [0, 0.25, 0.5, 1, 2]


def test_the_deadline_counts_from_the_start_of_the_last_confirmed_poll() -> None:
    # The poll that is answered after 30 s confirms up to its own start + 60 s: 20 s are left for a request of 40.
    unconfirmed = (admitted(wait_sec=30, lease_sec=60), Step(result("queued"), takes_sec=30), httpx.ReadError("late"))
    _, server, _ = _fails(httpx.ReadError, *unconfirmed)
    assert len(server.seen) == 3
    # An answer after 15 s leaves 45 s, and a retry is made.
    outcome, _ = _run(
        admitted(wait_sec=30, lease_sec=60),
        Step(result("queued"), takes_sec=15),
        httpx.ReadError("x"),
        result("success"),
    )
    assert outcome.status is RolloutStatus.SUCCESS


def test_the_admissions_lease_counts_from_its_request() -> None:
    _, server, _ = _fails(
        httpx.ReadError, Step(admitted(wait_sec=30, lease_sec=60), takes_sec=20), httpx.ReadError("late")
    )
    assert len(server.seen) == 2


def test_failed_requests_extend_nothing() -> None:
    # Each failure takes 25 s: the second ends with 30 s left of the lease of 80, too few for a request of 40.
    slow = Step(httpx.ReadError("slow"), takes_sec=25)
    _, server, _ = _fails(httpx.ReadError, admitted(wait_sec=30, lease_sec=80), slow, slow)
    assert len(server.seen) == 3


def test_a_retry_still_running_at_the_deadline_is_cut_and_the_earlier_error_raised() -> None:
    error, server, seconds = _fails(
        httpx.ReadError,
        admitted(wait_sec=30, lease_sec=60),
        httpx.ReadError("earlier"),
        Step(result("success"), takes_sec=1_000),
    )
    assert str(error) == "earlier"
    assert isinstance(error.__cause__, TimeoutError)
    assert len(server.seen) == 3
    assert seconds == 60


def test_a_first_request_is_not_cut_at_the_deadline() -> None:
    outcome, _ = _run(admitted(wait_sec=30, lease_sec=60), Step(result("success"), takes_sec=1_000))
    assert outcome.status is RolloutStatus.SUCCESS


def test_ids_are_percent_encoded_in_the_path() -> None:
    async def main() -> str:
        rollout_id = "a?b #%2F ä;=&+"
        server = ScriptedServer(admitted(rollout_id), result("success", rollout_id))
        outcome = await (await server.admit(rollout_id))
        assert outcome.rollout_id == rollout_id
        return server.seen[1].request.url.raw_path.decode()

    assert virtual_time.run(main()) == "/rollout/a%3Fb%20%23%252F%20%C3%A4%3B%3D%26%2B/result"
