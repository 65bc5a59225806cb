"""Saved admissions: what is written, and polling on from it."""

import json

import httpx
import pytest

from rollbook_client import POLLING_LEASE_HEADER, RolloutStatus
from tests.unit.client import virtual_time
from tests.unit.client.scripted import LEASE_TOKEN, ScriptedServer, Step, admitted, result


async def _saved(*, wait_sec: float = 30.0, lease_sec: float = 120.0, status: str = "running") -> bytes:
    """What a handle saved that had seen one poll."""
    server = ScriptedServer(
        admitted(wait_sec=wait_sec, lease_sec=lease_sec),
        Step(result(status), takes_sec=1),
        Step(result(status), takes_sec=9),
    )
    handle = await server.admit()
    await handle.wait_for_running()
    handle.cancel()
    return handle.save()


def test_a_saved_admission_is_json_with_what_polling_needs() -> None:
    saved = json.loads(virtual_time.run(_saved()))
    assert saved["admission"] == {
        "rollout_id": "r1",
        "status": "running",
        "polling_lease_token": LEASE_TOKEN,
        "result_wait_timeout_sec": 30.0,
        "polling_lease_timeout_sec": 120.0,
    }


def test_attaching_goes_on_polling_with_the_old_lease() -> None:
    async def main() -> None:
        saved = await _saved()
        server = ScriptedServer(Step(result("grading"), takes_sec=1), result("success"))
        handle = server.client().attach(saved)
        assert (handle.rollout_id, handle.status, handle.latest_result) == ("r1", RolloutStatus.RUNNING, None)
        assert await handle.wait_for_grading() is RolloutStatus.GRADING
        assert (await handle).status is RolloutStatus.SUCCESS
        assert {seen.request.headers[POLLING_LEASE_HEADER] for seen in server.seen} == {LEASE_TOKEN}
        assert set(server.seen[0].request.extensions["timeout"].values()) == {40.0}

    virtual_time.run(main())


def test_an_attached_handle_can_be_awaited_in_one_line_and_saved_again() -> None:
    async def main() -> None:
        saved = await _saved()
        outcome = await ScriptedServer(result("cancelled")).client().attach(saved)
        assert outcome.status is RolloutStatus.CANCELLED
        handle = ScriptedServer(result("success")).client().attach(saved)
        await handle
        again = ScriptedServer(result("success")).client().attach(handle.save())
        assert again.status is RolloutStatus.SUCCESS
        assert await again == await handle

    virtual_time.run(main())


def test_a_lease_that_ended_meanwhile_is_a_result_like_any_other() -> None:
    async def main() -> None:
        saved = await _saved()
        server = ScriptedServer(result("failure", err_message="polling lease expired", err_category="lease_expired"))
        outcome = await server.client().attach(saved)
        assert (outcome.status, outcome.err_category) == ("failure", "lease_expired")

    virtual_time.run(main())


def test_before_the_first_confirmation_retries_are_bounded_by_one_lease_timeout_from_attaching() -> None:
    async def main() -> None:
        saved = await _saved(wait_sec=30, lease_sec=45)
        server = ScriptedServer(*[httpx.Response(502)] * 5)
        attached_at = virtual_time.now()
        with pytest.raises(RuntimeError):
            await server.client().attach(saved)
        # As after an admission: 0.25 + 0.5 + 1 + 2 s, then a request of 40 s no longer fits into 45.
        assert server.gaps_sec == [0.25, 0.5, 1, 2]
        assert server.seen[0].at == attached_at

    virtual_time.run(main())


def test_a_confirmed_poll_moves_an_attached_handles_deadline_on() -> None:
    async def main() -> None:
        saved = await _saved(wait_sec=30, lease_sec=60)
        server = ScriptedServer(
            Step(result("running"), takes_sec=30),
            Step(result("running"), takes_sec=10),
            httpx.ReadError("x"),
            result("success"),
        )
        assert (await server.client().attach(saved)).status is RolloutStatus.SUCCESS

    virtual_time.run(main())


@pytest.mark.parametrize(
    "saved",
    [
        b"",
        b"{}",
        b"null",
        b"{",
        b'{"format":"rollbook-admission-2","admission":{}}',
        b'{"format":"rollbook-admission-1"}',
        b'{"format":"rollbook-admission-1","admission":{"rollout_id":"r1"}}',
    ],
)
def test_other_bytes_are_a_value_error_that_says_what_to_pass(saved: bytes) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match=r"RolloutHandle\.save"):
            ScriptedServer().client().attach(saved)

    virtual_time.run(main())


def test_bytes_that_were_cut_off_are_refused() -> None:
    async def main() -> None:
        saved = await _saved()
        for length in range(len(saved)):
            with pytest.raises(ValueError, match="complete"):
                ScriptedServer().client().attach(saved[:length])

    virtual_time.run(main())


def test_bytes_without_their_format_are_refused() -> None:
    async def main() -> None:
        saved = json.loads(await _saved())
        del saved["format"]
        with pytest.raises(ValueError, match="no saved rollout admission"):
            ScriptedServer().client().attach(json.dumps(saved).encode())

    virtual_time.run(main())
