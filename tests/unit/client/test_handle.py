"""What a handle shows and how its waits end."""

import asyncio

import httpx
import pytest

from rollbook_client import RolloutProtocolError, RolloutStatus
from tests.unit.client import virtual_time
from tests.unit.client.scripted import ScriptedServer, Step, admitted, result


def test_before_the_first_poll_the_handle_knows_the_admission_only() -> None:
    async def main() -> None:
        handle = await ScriptedServer(admitted(), Step(result("success"), takes_sec=1)).admit()
        assert (handle.rollout_id, handle.status, handle.latest_result) == ("r1", RolloutStatus.QUEUED, None)
        assert not handle.done()
        handle.cancel()

    virtual_time.run(main())


def test_it_follows_the_polls_and_ends_with_the_result() -> None:
    async def main() -> None:
        handle = await ScriptedServer(
            admitted(), Step(result("running"), takes_sec=1), Step(result("success"), takes_sec=5)
        ).admit()
        assert await handle.wait_for_running() is RolloutStatus.RUNNING
        assert handle.latest_result is not None
        assert (handle.status, handle.latest_result.status, handle.done()) == ("running", "running", False)
        outcome = await handle
        assert handle.done()
        assert handle.latest_result is outcome
        assert await handle.wait_for_completion() is outcome
        assert await handle is outcome

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("statuses", "running", "grading"),
    [
        (["queued", "running", "grading", "success"], "running", "grading"),
        (["queued", "grading", "success"], "grading", "grading"),
        (["queued", "running", "success"], "running", "success"),
        (["queued", "success"], "success", "success"),
        (["queued", "failure"], "failure", "failure"),
        (["queued", "cancelled"], "cancelled", "cancelled"),
        (["unknown", "running", "queued", "running", "failure"], "running", "failure"),
    ],
)
def test_a_stage_is_waited_for_until_reached_passed_or_ended(statuses: list[str], running: str, grading: str) -> None:
    async def main() -> None:
        handle = await ScriptedServer(admitted(), *[Step(result(status), takes_sec=1) for status in statuses]).admit()
        async with asyncio.TaskGroup() as group:
            reached_running = group.create_task(handle.wait_for_running())
            reached_grading = group.create_task(handle.wait_for_grading())
        assert (reached_running.result(), reached_grading.result()) == (running, grading)
        await handle
        assert await handle.wait_for_running() == statuses[-1]
        assert await handle.wait_for_grading() == statuses[-1]

    virtual_time.run(main())


def test_a_stage_seen_is_not_missed_when_the_rollout_steps_back_at_once() -> None:
    async def main() -> None:
        # Answers without any pause between them: the waiter runs only after the step back.
        handle = await ScriptedServer(
            admitted(),
            Step(result("queued"), takes_sec=1),
            result("running"),
            result("queued"),
            Step(result("success"), 9),
        ).admit()
        assert await handle.wait_for_running() is RolloutStatus.RUNNING
        handle.cancel()

    virtual_time.run(main())


def test_a_stage_that_polling_never_reaches_raises_what_ended_the_polling() -> None:
    async def main() -> None:
        handle = await ScriptedServer(
            admitted(), Step(result("running"), takes_sec=1), Step(httpx.Response(404), takes_sec=1)
        ).admit()
        assert await handle.wait_for_running() is RolloutStatus.RUNNING
        for wait in (handle.wait_for_grading, handle.wait_for_grading, handle.wait_for_completion):
            with pytest.raises(RolloutProtocolError) as caught:
                await wait()
            assert caught.value.status_code == 404
        # What was reached stays reached.
        assert await handle.wait_for_running() is RolloutStatus.RUNNING
        assert handle.done()

    virtual_time.run(main())


def test_cancel_is_local_and_ends_every_wait() -> None:
    async def main() -> None:
        server = ScriptedServer(admitted(), Step(result("running"), takes_sec=30))
        handle = await server.admit()
        waiting = asyncio.create_task(handle.wait_for_grading())
        await asyncio.sleep(1)
        assert handle.cancel() is True
        with pytest.raises(asyncio.CancelledError):
            await handle
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert handle.done()
        assert handle.cancel() is False
        assert [seen.request.url.path for seen in server.seen] == ["/rollout", "/rollout/r1/result"]

    virtual_time.run(main())


def test_cancel_before_the_first_poll_ends_waits_too() -> None:
    async def main() -> None:
        server = ScriptedServer(admitted())
        handle = await server.admit()
        handle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handle.wait_for_running()
        assert len(server.seen) == 1

    virtual_time.run(main())


def test_giving_up_a_wait_for_a_stage_does_not_stop_the_polling() -> None:
    async def main() -> None:
        handle = await ScriptedServer(admitted(), Step(result("success"), takes_sec=30)).admit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.wait_for_running(), 5)
        assert (await handle).status is RolloutStatus.SUCCESS

    virtual_time.run(main())


def test_cancelling_run_rollout_stops_the_polling() -> None:
    async def main() -> None:
        server = ScriptedServer(admitted(), Step(result("running"), takes_sec=20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await server.client().run_rollout([], "http://chat.test/v1", "r1")
        await asyncio.sleep(100)
        assert len(server.seen) == 2

    virtual_time.run(main())


def test_an_error_without_any_waiter_is_kept_for_the_handles_owner() -> None:
    async def main() -> None:
        handle = await ScriptedServer(admitted(), httpx.Response(403)).admit()
        await asyncio.sleep(1)
        assert handle.done()
        with pytest.raises(RolloutProtocolError, match="lease token"):
            await handle

    virtual_time.run(main())
