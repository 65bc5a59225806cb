"""The retry arithmetic, without a clock."""

import httpx
import pytest

from rollbook_client import RolloutProtocolError
from rollbook_client.retries import ResultRetries, retry_after_sec

_FAR = 1e9


def _delays(error: Exception) -> list[float]:
    retries = ResultRetries(request_timeout_sec=40, lease_deadline=_FAR)
    delays: list[float] = []
    while (delay_sec := retries.next_delay_sec(error, now=0)) is not None:
        delays.append(delay_sec)
    return delays


@pytest.mark.parametrize(
    "kind",
    [
        httpx.RemoteProtocolError,
        httpx.NetworkError,
        httpx.ConnectError,
        httpx.ReadError,
        httpx.WriteError,
        httpx.CloseError,
        httpx.ReadTimeout,
    ],
)
def test_broken_connections_are_retried_twice(kind: type[httpx.TransportError]) -> None:
    assert _delays(kind("broken")) == [0.1, 0.5]


@pytest.mark.parametrize("status_code", [502, 503, 504])
def test_gateway_errors_are_retried_six_times(status_code: int) -> None:
    assert _delays(RolloutProtocolError("gateway", status_code=status_code)) == [0.25, 0.5, 1, 2, 4, 8]


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectTimeout("late"),
        httpx.WriteTimeout("late"),
        httpx.PoolTimeout("late"),
        httpx.LocalProtocolError("ours"),
        httpx.UnsupportedProtocol("what"),
        *(
            RolloutProtocolError("no", status_code=code)
            for code in (200, 301, 400, 401, 403, 404, 409, 422, 429, 500, 501)
        ),
    ],
)
def test_everything_else_is_final_at_once(error: Exception) -> None:
    assert _delays(error) == []


def test_the_two_plans_do_not_use_each_other_up() -> None:
    retries = ResultRetries(request_timeout_sec=40, lease_deadline=_FAR)
    broken, gateway = httpx.ReadError("broken"), RolloutProtocolError("gateway", status_code=502)
    errors = [broken, gateway, gateway, broken, gateway, broken]
    assert [retries.next_delay_sec(error, now=0) for error in errors] == [0.1, 0.25, 0.5, 0.5, 1, None]


def test_a_retry_must_end_before_the_lease_does() -> None:
    retries = ResultRetries(request_timeout_sec=40, lease_deadline=120)
    assert retries.next_delay_sec(httpx.ReadError("broken"), now=79.89) == 0.1
    # 79.5 + 0.5 + 40 is the deadline itself: too late.
    assert retries.next_delay_sec(httpx.ReadError("broken"), now=79.5) is None
    assert retries.fits(now=79.99)
    assert not retries.fits(now=80)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 1.0),
        ("", 1.0),
        ("soon", 1.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        ("nan", 1.0),
        ("inf", 1.0),
        ("5", 5.0),
        ("0.2", 0.2),
        ("0", 0.05),
        ("-3", 0.05),
        ("60", 60.0),
        ("3600", 60.0),
    ],
)
def test_retry_after_is_honoured_within_its_limits(header: str | None, seconds: float) -> None:
    assert retry_after_sec(header) == seconds
