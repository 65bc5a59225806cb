"""Reading health, and waiting until no rollout is active."""

import math
from typing import Any

import httpx
import pytest

from rollbook_client import RolloutProtocolError
from tests.unit.client import virtual_time
from tests.unit.client.scripted import URL, ScriptedServer, Step


def _health(active: int, *, process_id: str = "p1", **fields: Any) -> httpx.Response:
    lifecycle = {"accepting_rollouts": True, "active_rollouts": active}
    return httpx.Response(
        200, json={"status": "ok", "instance_id": "i", "process_id": process_id, "lifecycle": lifecycle} | fields
    )


def test_health_is_returned_with_whatever_the_backend_adds() -> None:
    async def main() -> None:
        server = ScriptedServer(_health(3, concurrency={"running": 2}))
        health = await server.client().health()
        assert (health["lifecycle"]["active_rollouts"], health["concurrency"]) == (3, {"running": 2})
        assert str(server.seen[0].request.url) == f"{URL}/health"

    virtual_time.run(main())


@pytest.mark.parametrize("answer", [httpx.Response(500), httpx.Response(200, json=[]), httpx.Response(200, text="ok")])
def test_health_that_is_no_object_is_a_protocol_error(answer: httpx.Response) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError) as caught:
            await ScriptedServer(answer).client().health()
        assert caught.value.status_code == answer.status_code

    virtual_time.run(main())


def test_idle_is_asked_for_at_the_interval_until_nothing_is_active() -> None:
    async def main() -> None:
        server = ScriptedServer(_health(2), _health(1), _health(0, status="idle"))
        health = await server.client().wait_idle()
        assert health["status"] == "idle"
        assert server.gaps_sec == [1, 1]

    virtual_time.run(main())


@pytest.mark.parametrize(
    "passing",
    [
        *(httpx.Response(code) for code in (408, 429, 500, 502, 503, 504)),
        *(kind("broken") for kind in (httpx.ConnectError, httpx.ReadTimeout, httpx.PoolTimeout, httpx.ConnectTimeout)),
    ],
)
def test_passing_failures_are_asked_again(passing: httpx.Response | Exception) -> None:
    async def main() -> None:
        server = ScriptedServer(_health(1), passing, passing, passing, _health(0))
        await server.client().wait_idle(poll_interval_sec=0.5)
        assert server.gaps_sec == [0.5] * 4

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [302, 400, 401, 403, 404, 501])
def test_other_statuses_end_the_wait(status_code: int) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError) as caught:
            await ScriptedServer(httpx.Response(status_code)).client().wait_idle()
        assert caught.value.status_code == status_code

    virtual_time.run(main())


def test_the_timeout_is_a_timeout_error_that_says_what_was_seen_last() -> None:
    async def main() -> None:
        server = ScriptedServer(*[_health(7)] * 4)
        started_at = virtual_time.now()
        with pytest.raises(TimeoutError, match="7 rollouts were active last"):
            await server.client().wait_idle(timeout_sec=3.5)
        assert virtual_time.now() - started_at == pytest.approx(3.5)

    virtual_time.run(main())


def test_the_timeout_cuts_a_request_under_way_and_unreachable_servers_end_with_it() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError, match="has not answered"):
            await ScriptedServer(Step(_health(0), takes_sec=1_000)).client().wait_idle(timeout_sec=2)
        with pytest.raises(TimeoutError, match="ConnectError"):
            await ScriptedServer(*[httpx.ConnectError("refused")] * 3).client().wait_idle(timeout_sec=2.5)

    virtual_time.run(main())


def test_a_changed_process_is_a_protocol_error() -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError, match="restarted"):
            await ScriptedServer(_health(1), _health(0, process_id="p2")).client().wait_idle()
        with pytest.raises(RolloutProtocolError, match="restarted"):
            await ScriptedServer(_health(0)).client().wait_idle(process_id="p0")
        await ScriptedServer(_health(0)).client().wait_idle(process_id="p1")

    virtual_time.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {"process_id": None},
        {"process_id": ""},
        {"process_id": 7},
        {"lifecycle": None},
        {"lifecycle": {}},
        {"lifecycle": {"accepting_rollouts": True, "active_rollouts": -1}},
        {"lifecycle": {"accepting_rollouts": True, "active_rollouts": "0"}},
    ],
)
def test_health_without_a_life_cycle_is_a_protocol_error(fields: dict[str, Any]) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError, match="upgrade the server") as caught:
            await ScriptedServer(httpx.Response(200, json=_health(0).json() | fields)).client().wait_idle()
        assert caught.value.status_code == 200

    virtual_time.run(main())


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_both_times_must_be_positive_and_finite(value: float) -> None:
    async def main() -> None:
        client = ScriptedServer().client()
        with pytest.raises(ValueError, match="timeout_sec"):
            await client.wait_idle(timeout_sec=value)
        with pytest.raises(ValueError, match="poll_interval_sec"):
            await client.wait_idle(poll_interval_sec=value)

    virtual_time.run(main())
