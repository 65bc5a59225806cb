"""Asking the server to cancel one rollout."""

import httpx
import pytest

from rollbook_client import CancelDisposition, RolloutProtocolError
from tests.unit.client import virtual_time
from tests.unit.client.scripted import URL, ScriptedServer, Step


def test_it_asks_for_this_id_only_and_returns_what_was_found() -> None:
    async def main() -> None:
        server = ScriptedServer(httpx.Response(200, json={"dispositions": {"r 1": "cancelled_running"}}))
        answer = await server.client().cancel_rollout("r 1")
        assert answer.dispositions == {"r 1": CancelDisposition.CANCELLED_RUNNING}
        (seen,) = server.seen
        assert (seen.request.method, str(seen.request.url)) == ("POST", f"{URL}/rollout/cancel")
        assert seen.body == {"ids": ["r 1"]}
        assert seen.request.headers["Content-Type"] == "application/json"

    virtual_time.run(main())


def test_the_whole_operation_takes_at_most_five_seconds() -> None:
    async def main() -> None:
        server = ScriptedServer(Step(httpx.Response(200, json={"dispositions": {}}), takes_sec=1_000))
        started_at = virtual_time.now()
        with pytest.raises(TimeoutError):
            await server.client().cancel_rollout("r1")
        assert virtual_time.now() - started_at == pytest.approx(5)

    virtual_time.run(main())


@pytest.mark.parametrize("status_code", [202, 302, 401, 404, 422, 429, 500, 502, 503])
def test_another_status_is_a_protocol_error_and_not_retried(status_code: int) -> None:
    async def main() -> None:
        server = ScriptedServer(httpx.Response(status_code))
        with pytest.raises(RolloutProtocolError) as caught:
            await server.client().cancel_rollout("r1")
        assert caught.value.status_code == status_code

    virtual_time.run(main())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"dispositions":{"r1":1}}'])
def test_an_invalid_body_is_a_protocol_error(body: bytes) -> None:
    async def main() -> None:
        with pytest.raises(RolloutProtocolError):
            await ScriptedServer(httpx.Response(200, content=body)).client().cancel_rollout("r1")

    virtual_time.run(main())


def test_a_transport_error_is_not_retried() -> None:
    async def main() -> None:
        with pytest.raises(httpx.ReadError):
            await ScriptedServer(httpx.ReadError("broken")).client().cancel_rollout("r1")

    virtual_time.run(main())


@pytest.mark.parametrize("rollout_id", ["", "..", "a/b", "\ud800"])
def test_what_can_be_no_rollouts_id_is_not_sent(rollout_id: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="rollout_id"):
            await ScriptedServer().client().cancel_rollout(rollout_id)

    virtual_time.run(main())
