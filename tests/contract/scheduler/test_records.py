"""What attempts record is in the ledger before their ends, whatever the ledger does meanwhile."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import msgspec
import pytest

from rollbook.ledger import codec
from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook.scheduler import recording
from rollbook.scheduler.recording import Recorder
from rollbook.scheduler.records import packed
from rollbook.scheduler.runners import Lost
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.wire import Finished, Recorded
from rollbook_client import events as ev
from tests.support.ledger import CALLED, SECOND_US, rows
from tests.support.outages import unwritable
from tests.support.scheduling import SAMPLE, PlayedPool, admit, only, settings, settled, types


def stop(name: str) -> ev.ExchangeStopped:
    return ev.ExchangeStopped(attempt=0, condition=name)


def tell(pool: PlayedPool, key: int, *events: ev.Event) -> None:
    assert pool.reports is not None
    pool.reports.recorded(Recorded(key, tuple(packed(event) for event in events)))


async def recorded(ledger: Ledger, rollout_id: str, *kinds: str) -> list[Any]:
    page = await ledger.reader.events_page(rollout_id=rollout_id, types=kinds, limit=10_000)
    return [codec.decode(event.type, event.version, event.payload) for event in page]


async def begun(ledger: Ledger, pool: PlayedPool, rollout_id: str = "r") -> int:
    await admit(ledger, rollout_id)
    await pool.until(lambda: any(item.rollout_id == rollout_id for item in pool.running.values()))
    return next(key for key, item in pool.running.items() if item.rollout_id == rollout_id)


async def test_records_are_in_the_ledger_with_their_attempt_before_its_end(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler, database_url: str
) -> None:
    key = await begun(ledger, pool)
    tell(pool, key, CALLED, stop("a"))
    tell(pool, key, ev.RewardRecorded(attempt=0, name="exact", value=0.5, weight=2.0))
    pool.end(key, Finished(key, "success", sample=SAMPLE, reward=1.0, metrics={"turns": 1.0}))
    await settled(ledger, "r", lambda state: not state.active)
    assert await types(ledger, "r") == [
        "rollout_admitted",
        "attempt_started",
        "model_called",
        "exchange_stopped",
        "reward_recorded",
        "stage_timed",
        "metric_recorded",
        "rollout_finished",
        "attempt_ended",
    ]
    call, stopped = await recorded(ledger, "r", "model_called", "exchange_stopped")
    assert (call.attempt, call.output_tokens, stopped.attempt) == (1, 16, 1)
    (reward,) = await recorded(ledger, "r", "reward_recorded")
    assert (reward.name, reward.value, reward.weight, reward.scoring) == ("exact", 0.5, 2.0, 0)
    assert (audit(database_url), verify_replay(database_url)) == ([], [])


async def test_times_of_calls_are_the_ledgers(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await begun(ledger, pool)
    monkeypatch.setattr(ledger, "skew_us", lambda: 3 * SECOND_US)
    tell(pool, key, CALLED)
    pool.end(key, Finished(key, "failure"))
    await settled(ledger, "r", lambda state: not state.active)
    (call,) = await recorded(ledger, "r", "model_called")
    assert call.started_at == CALLED.started_at + 3 * SECOND_US


async def test_rollout_without_records_ends_in_one_transaction_as_before(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler
) -> None:
    key = await begun(ledger, pool)
    pool.end(key, Finished(key, "success", phases=("running",), sample=SAMPLE, reward=1.0))
    await settled(ledger, "r", lambda state: not state.active)
    page = await ledger.reader.events_page(rollout_id="r")
    assert len({event.recorded_at for event in page[2:]}) == 1
    (reward,) = await recorded(ledger, "r", "reward_recorded")
    assert (reward.name, reward.value) == ("reward", 1.0)


async def test_records_and_ends_that_wait_for_the_ledger_land_in_their_order(
    ledger: Ledger, database_url: str, pool: PlayedPool, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {name: await begun(ledger, pool, name) for name in ("one", "two")}
    with unwritable(database_url):
        for index in range(50):
            for key in keys.values():
                tell(pool, key, stop(str(index)))
            if index % 10 == 0:
                with pytest.raises(LedgerUnavailable):
                    await ledger.submit(cmd.CloseAdmission(by="test"))
        for key in keys.values():
            pool.end(key, Finished(key, "success", sample=SAMPLE, reward=1.0))
        with pytest.raises(LedgerUnavailable):
            await ledger.submit(cmd.CloseAdmission(by="test"))
    for name in keys:
        await settled(ledger, name, lambda state: not state.active)
        assert (await types(ledger, name))[2:-4] == ["exchange_stopped"] * 50
        assert [event.condition for event in await recorded(ledger, name, "exchange_stopped")] == [
            str(index) for index in range(50)
        ]
    assert "are lost" not in caplog.text


async def test_more_than_memory_allows_is_dropped_with_a_word_and_the_result_is_kept(
    ledger: Ledger,
    database_url: str,
    pool: PlayedPool,
    scheduler: Scheduler,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 20_000)
    key = await begun(ledger, pool)
    trace = ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="x" * 7_000)
    with unwritable(database_url):
        tell(pool, key, trace, trace, trace, stop("small enough"))
        tell(pool, key, trace)
        pool.end(key, Finished(key, "success", sample=SAMPLE, reward=1.0))
        with pytest.raises(LedgerUnavailable):
            await ledger.submit(cmd.CloseAdmission(by="test"))
    state = await settled(ledger, "r", lambda state: not state.active)
    assert state.status == "success"
    assert len(await recorded(ledger, "r", "trace_saved")) == 2
    assert len(await recorded(ledger, "r", "exchange_stopped")) == 1
    assert caplog.text.count("rollout r: records of it are lost") == 1


async def test_there_is_room_again_once_the_ledger_has_what_waited(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 10_000)
    await begun(ledger, pool)
    recorder = Recorder(ledger, lambda _key: None)
    trace = ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="x" * 7_000)
    for _ in range(5):
        recorder.note(cmd.Record("r", 1, scheduler.member_id, (trace,)), key=1)
        await recorder.settle(10)
    assert len(await recorded(ledger, "r", "trace_saved")) == 5


@pytest.mark.parametrize(
    "bad",
    [
        ev.RewardRecorded(attempt=0, name="wild", value=float("nan")),
        msgspec.structs.replace(CALLED, started_at=2**63 + 2**40),
    ],
    ids=["no JSON form", "no place in its column"],
)
async def test_record_that_the_ledger_refuses_is_lost_alone(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler, caplog: pytest.LogCaptureFixture, bad: ev.Event
) -> None:
    key = await begun(ledger, pool)
    tell(pool, key, stop("before"), bad, stop("after"))
    pool.end(key, Finished(key, "success", sample=SAMPLE, reward=1.0))
    state = await settled(ledger, "r", lambda state: not state.active)
    assert state.status == "success"
    assert [event.condition for event in await recorded(ledger, "r", "exchange_stopped")] == ["before", "after"]
    assert f"rollout r: its {bad.TYPE} is not recorded: " in caplog.text
    # Its reward was not recorded as it came, so its sample's is.
    (reward,) = await recorded(ledger, "r", "reward_recorded")
    assert (reward.name, reward.value) == ("reward", 1.0)


async def test_record_that_does_not_read_is_lost_alone(
    ledger: Ledger, pool: PlayedPool, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    key = await begun(ledger, pool)
    assert pool.reports is not None
    pool.reports.recorded(Recorded(key, (packed(stop("good")), ("model_called", b"\xc1"), ("unknown", b""))))
    pool.end(key, Finished(key, "success", sample=SAMPLE))
    state = await settled(ledger, "r", lambda state: not state.active)
    assert state.status == "success"
    assert len(await recorded(ledger, "r", "exchange_stopped")) == 1
    assert "rollout r: a record is lost: model_called does not read" in caplog.text
    assert "rollout r: a record is lost: unknown does not read" in caplog.text


async def test_large_trace_is_kept_whole(
    ledger: Ledger, database_url: str, pool: PlayedPool, scheduler: Scheduler
) -> None:
    key = await begun(ledger, pool)
    data = base64.b64encode(bytes(range(256)) * 80_000).decode()
    tell(pool, key, stop("before"), ev.TraceSaved(attempt=0, version=1, size_bytes=9, data=data), stop("after"))
    pool.end(key, Finished(key, "success", sample=SAMPLE))
    await settled(ledger, "r", lambda state: not state.active)
    (trace,) = await recorded(ledger, "r", "trace_saved")
    assert trace.data == data
    order = [kind for (kind,) in rows(database_url, "SELECT type FROM events ORDER BY position")]
    assert order[2:5] == ["exchange_stopped", "trace_saved", "exchange_stopped"]


async def test_lost_attempt_keeps_what_it_recorded(ledger: Ledger, pool: PlayedPool, scheduler: Scheduler) -> None:
    first = await begun(ledger, pool)
    tell(pool, first, stop("first"))
    pool.end(first, Lost(first, "its runner died"))
    await pool.until(lambda: any(key != first for key in pool.running))
    second = only(pool)
    tell(pool, first, stop("too late"))
    tell(pool, second, stop("second"))
    pool.end(second, Finished(second, "success", sample=SAMPLE))
    await settled(ledger, "r", lambda state: not state.active)
    stops = await recorded(ledger, "r", "exchange_stopped")
    assert [(event.attempt, event.condition) for event in stops] == [(1, "first"), (2, "second")]


async def test_records_of_a_superseded_attempt_are_dropped_without_many_words(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, recording.__name__)
    await admit(ledger, "r")
    ended: list[int] = []
    recorder = Recorder(ledger, ended.append)
    for _ in range(3):
        recorder.note(cmd.Record("r", 1, "another", (CALLED,)), key=1)
    recorder.record(cmd.FinishAttempt("r", 1, "another", status="failure"), ends=1)
    await recorder.settle(10)
    assert ended == [1]
    assert [entry.getMessage() for entry in caplog.records if entry.name == recording.__name__] == [
        "rollout r: the report of superseded attempt 1 is dropped"
    ]
    assert await types(ledger, "r") == ["rollout_admitted"]


async def test_records_of_many_attempts_share_transactions(ledger: Ledger, database_url: str) -> None:
    pool = PlayedPool(slots=40)
    scheduler = Scheduler(ledger, settings(ledger), pool, on_broken=pytest.fail)
    await scheduler.start()
    for index in range(40):
        await admit(ledger, f"r-{index}")
    await pool.until(lambda: len(pool.running) == 40)
    for key in list(pool.running):
        tell(pool, key, CALLED)
    for key in list(pool.running):
        tell(pool, key, stop("later"))
        pool.end(key, Finished(key, "success", sample=SAMPLE))
    for index in range(40):
        await settled(ledger, f"r-{index}", lambda state: not state.active)
    await scheduler.stop()
    ((moments,),) = rows(database_url, "SELECT count(DISTINCT recorded_at) FROM events WHERE type = 'model_called'")
    assert moments <= 4
    assert rows(database_url, "SELECT count(*) FROM events WHERE type = 'exchange_stopped'") == [(40,)]


async def test_shutdown_waits_for_records(ledger: Ledger, pool: PlayedPool) -> None:
    scheduler = Scheduler(ledger, settings(ledger, force_sec=10.0), pool, on_broken=pytest.fail)
    await scheduler.start()
    key = await begun(ledger, pool)
    for index in range(600):
        tell(pool, key, stop(str(index)))
    pool.end(key, Finished(key, "success", sample=SAMPLE))
    async with asyncio.timeout(30):
        await scheduler.stop()
    assert len(await recorded(ledger, "r", "exchange_stopped")) == 600
    assert (await types(ledger, "r"))[-1] == "attempt_ended"
