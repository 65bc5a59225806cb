"""What a rollout records leaves its runner in order, in few messages, and before its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rollbook import RolloutContext, get_rollout_context
from rollbook.backends.base import ExecutionBackend, ExecutionOutcome, ExecutionRequest, ExecutionResult
from rollbook.scheduler.records import unpacked
from rollbook.scheduler.runner import records
from rollbook.scheduler.runner.executor import Executor
from rollbook.scheduler.runner.logs import SecretRegistry
from rollbook.scheduler.wire import Entered, Finished, Recorded, Staged, ToScheduler
from rollbook_client import events as ev
from rollbook_client.statuses import RolloutStatus
from tests.support.ledger import CALLED
from tests.unit.scheduler.test_executor import KEY, URL, Inbox, assignment


def stop(number: int) -> ev.ExchangeStopped:
    return ev.ExchangeStopped(attempt=0, condition=str(number))


class Recording(ExecutionBackend):
    """Runs what the test says with the rollout's context."""

    def __init__(self, work: Callable[[RolloutContext], Any]) -> None:
        self.work = work

    async def execute(self, request: ExecutionRequest) -> ExecutionOutcome:
        rollout = get_rollout_context()
        assert rollout is not None
        rollout.enter_phase(RolloutStatus.RUNNING)
        await self.work(rollout)
        return ExecutionOutcome(workflow=ExecutionResult(status=RolloutStatus.SUCCESS))


async def messages_of(work: Callable[[RolloutContext], Any]) -> list[ToScheduler]:
    inbox = Inbox()
    Executor(Recording(work), SecretRegistry(), inbox.put).start(assignment())
    await inbox.finished()
    return inbox.messages


def events_of(messages: list[ToScheduler]) -> list[ev.Event]:
    recorded = [message for message in messages if isinstance(message, Recorded)]
    return [unpacked(record) for message in recorded for record in message.records]


async def test_records_come_after_their_phase_and_before_the_end_in_one_message() -> None:
    async def work(rollout: RolloutContext) -> None:
        rollout.record(stop(1), stop(2))
        rollout.record(stop(3))

    messages = await messages_of(work)
    assert [type(message) for message in messages] == [Entered, Staged, Recorded, Finished]
    assert events_of(messages) == [stop(1), stop(2), stop(3)]
    end = messages[-1]
    assert isinstance(end, Finished)
    assert end.phases == ()


async def test_records_are_told_while_the_rollout_goes_on() -> None:
    inbox = Inbox()
    told = asyncio.Event()

    async def work(rollout: RolloutContext) -> None:
        rollout.record(stop(1))
        await told.wait()
        rollout.record(stop(2))

    Executor(Recording(work), SecretRegistry(), inbox.put).start(assignment())
    await inbox.until(lambda: events_of(inbox.messages) == [stop(1)])
    told.set()
    await inbox.finished()
    assert events_of(inbox.messages) == [stop(1), stop(2)]


async def test_many_records_are_sent_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_DELAY_SEC", 3600.0)
    monkeypatch.setattr(records, "FLUSH_BYTES", 1_000)
    inbox = Inbox()

    async def work(rollout: RolloutContext) -> None:
        rollout.record(ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="x" * 2_000))
        await asyncio.Event().wait()

    executor = Executor(Recording(work), SecretRegistry(), inbox.put)
    executor.start(assignment())
    await inbox.until(lambda: len(events_of(inbox.messages)) == 1)
    await executor.shut_down()


async def test_records_of_two_rollouts_keep_apart() -> None:
    inbox = Inbox()

    async def work(rollout: RolloutContext) -> None:
        rollout.record(ev.ExchangeStopped(attempt=0, condition=rollout.rollout_id))

    executor = Executor(Recording(work), SecretRegistry(), inbox.put)
    executor.start(assignment(1))
    executor.start(assignment(2))
    await inbox.finished(1)
    await inbox.finished(2)
    for message in inbox.messages:
        if isinstance(message, Recorded):
            (record,) = message.records
            assert unpacked(record) == ev.ExchangeStopped(attempt=0, condition=f"r-{message.key}")


async def test_records_of_a_thread_come_too() -> None:
    async def work(rollout: RolloutContext) -> None:
        for number in range(3):
            await asyncio.to_thread(rollout.record, stop(number))

    assert events_of(await messages_of(work)) == [stop(0), stop(1), stop(2)]


async def test_record_after_the_end_goes_nowhere() -> None:
    kept: list[RolloutContext] = []

    async def work(rollout: RolloutContext) -> None:
        kept.append(rollout)

    messages = await messages_of(work)
    kept[0].record(stop(1))
    await asyncio.to_thread(kept[0].record, stop(2))
    turned = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * records.RECORD_DELAY_SEC, turned.set)
    await turned.wait()
    assert isinstance(messages[-1], Finished)


async def test_cancelled_rollout_keeps_what_it_recorded() -> None:
    inbox = Inbox()
    begun = asyncio.Event()

    async def work(rollout: RolloutContext) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            rollout.record(stop(1))

    executor = Executor(Recording(work), SecretRegistry(), inbox.put)
    executor.start(assignment())
    await begun.wait()
    executor.cancel(1)
    assert (await inbox.finished()).status == "cancelled"
    assert events_of(inbox.messages) == [stop(1)]


async def test_errors_of_calls_show_no_secret() -> None:
    async def work(rollout: RolloutContext) -> None:
        rollout.record(msgspec.structs.replace(CALLED, error_kind="http", error=f"401 for {URL} with {KEY}"))

    (call,) = events_of(await messages_of(work))
    assert isinstance(call, ev.ModelCalled)
    assert call.error == "401 for [chat_completions_url] with [llm_api_key]"


async def test_record_that_cannot_be_sent_is_told_of_and_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def work(rollout: RolloutContext) -> None:
        rollout.record(stop(1), msgspec.structs.replace(CALLED, call=2**70), stop(2))

    messages = await messages_of(work)
    assert events_of(messages) == [stop(1), stop(2)]
    end = messages[-1]
    assert isinstance(end, Finished)
    assert end.status == "success"
    assert "rollout r-1: a record is lost: model_called cannot be sent" in caplog.text


def test_without_a_ledger_nothing_is_recorded_and_nothing_fails() -> None:
    RolloutContext("http://chat.example").record(CALLED)


def test_events_of_the_ledger_itself_are_refused_where_they_are_made() -> None:
    with pytest.raises(TypeError, match="LeaseRenewed cannot be recorded by a rollout; record one of StageTimed"):
        RolloutContext("http://chat.example").record(ev.LeaseRenewed(expires_at=1))
