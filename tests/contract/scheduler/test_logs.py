"""What a scheduler's log says of an outage, of attempts that are another's by now, and of dead neighbours."""

from __future__ import annotations

import logging

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.scheduler.recording import Recorder
from rollbook.scheduler.scheduler import Scheduler
from rollbook.scheduler.sweeps import Sweeper
from rollbook.scheduler.wire import Finished
from tests.support.outages import unwritable
from tests.support.scheduling import QUEUE, SAMPLE, PlayedPool, admit, settled
from tests.support.stores import elsewhere

RECORDING = "rollbook.scheduler.recording"
SWEEPS = "rollbook.scheduler.sweeps"
DEAD_AFTER_US = 15_000_000


def said(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


class Once:
    """The settled sweeper of a test."""

    member_id = "sweeping"

    def may_declare_dead(self) -> bool:
        return True


async def test_outage_is_told_once_when_it_begins_and_once_when_it_is_over(
    ledger: Ledger, database_url: str, pool: PlayedPool, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, RECORDING)
    for name in ("first", "second"):
        await admit(ledger, name)
    await pool.until(lambda: len(pool.running) == 2)
    with unwritable(database_url):
        for key in list(pool.running):
            pool.end(key, Finished(key, "success", sample=SAMPLE))
        # Both reports have been refused by the time that a write sent after them is refused for a second time.
        for _ in range(2):
            with pytest.raises(LedgerUnavailable):
                await ledger.submit(cmd.CloseAdmission(by="test"))
        (begins,) = said(caplog, RECORDING)
    for name in ("first", "second"):
        await settled(ledger, name, lambda state: not state.active)
    await scheduler.stop()
    assert begins.startswith("the ledger cannot be written now: ")
    assert begins.endswith("; reports of attempts are kept and tried again (2 so far)")
    assert said(caplog, RECORDING) == [
        begins,
        "the ledger can be written again; it has all reports of attempts that were kept (2)",
    ]


async def test_superseded_attempt_is_told_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, RECORDING)
    await admit(ledger, "r")
    ended: list[int] = []
    recorder = Recorder(ledger, ended.append)
    recorder.record(cmd.EnterPhase("r", 1, "another", "running"))
    recorder.record(cmd.FinishAttempt("r", 1, "another", status="failure"), ends=1)
    await recorder.settle(10)
    assert ended == [1]
    assert said(caplog, RECORDING) == ["rollout r: the report of superseded attempt 1 is dropped"]


async def test_sweep_tells_in_words_what_it_took_over_and_from_whom(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, SWEEPS)
    for name in ("one", "two"):
        await admit(ledger, name)
    silent = cmd.Register(
        member_id="silent-0123",
        kind="scheduler",
        host="gpu-1 pid:[4026531836]",
        pid=1,
        dead_after_us=DEAD_AFTER_US,
        entrypoint="x.py",
        queues=(QUEUE,),
        capacity=2,
    )
    elsewhere(ledger, silent, cmd.Claim("silent-0123", (QUEUE,), 2), ago_sec=60.0)
    await Sweeper(ledger, Once(), dead_after_us=DEAD_AFTER_US).run_once()
    assert said(caplog, SWEEPS) == ["2 rollouts taken over from schedulers that are gone (silent-0 on gpu-1)"]
