"""Closed admission as the ledger keeps it: seen by every process in the transaction that would admit, and kept."""

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import AdmissionClosed, LedgerError
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.vitals import read_head
from tests.support.ledger import START_US, Writing, admit, claim, finish, poll, rows, scheduler, writing

LOG = "SELECT queue, closed_at, closed_by, opened_at, opened_by FROM drains ORDER BY closed_at, queue"


def close(queue: str = "", *, by: str = "ann") -> cmd.CloseAdmission:
    return cmd.CloseAdmission(by=by, queue=queue)


def reopen(queue: str = "", *, by: str = "bob") -> cmd.OpenAdmission:
    return cmd.OpenAdmission(by=by, queue=queue)


def refused(answer: object) -> bool:
    assert not isinstance(answer, LedgerError) or isinstance(answer, AdmissionClosed)
    return isinstance(answer, AdmissionClosed)


def test_closed_ledger_admits_nothing_and_goes_on_with_what_it_has(writer: Writing) -> None:
    writer.batch(scheduler(), admit("r-1"), admit("r-2"))
    assert writer.do(close()) is True
    with pytest.raises(AdmissionClosed, match="ann"):
        writer.do(admit("r-3"))
    assert writer.do(poll("r-1")).status == "queued"
    assert len(writer.do(claim())) == 2
    assert writer.do(finish("r-1")).status == "success"
    assert writer.do(cmd.Cancel(requested_by="x", ids=("r-2",))) == {"r-2": "cancelled_running"}


def test_opened_ledger_admits_again(writer: Writing) -> None:
    writer.do(close())
    assert writer.do(reopen()) == 1
    assert writer.do(admit()).status == "queued"


def test_closing_and_admitting_in_one_transaction_keep_their_order(writer: Writing) -> None:
    before, _, after, _, again = writer.batch(admit("r-1"), close(), admit("r-2"), reopen(), admit("r-3"))
    assert [refused(answer) for answer in (before, after, again)] == [False, True, False]


def test_closing_twice_is_one_closure_and_keeps_who_was_first(writer: Writing, database_url: str) -> None:
    assert writer.do(close(by="ann")) is True
    writer.clock.forward(5)
    assert writer.do(close(by="eve")) is False
    assert rows(database_url, LOG) == [("", START_US, "ann", None, None)]


def test_opening_what_is_open_does_nothing(writer: Writing, database_url: str) -> None:
    assert writer.do(reopen()) == 0
    assert rows(database_url, LOG) == []


def test_who_closed_and_opened_is_kept_with_the_times(writer: Writing, database_url: str) -> None:
    writer.do(close())
    writer.clock.forward(5)
    writer.do(reopen())
    writer.clock.forward(5)
    writer.do(close(by="eve"))
    second = 1_000_000
    assert rows(database_url, LOG) == [
        ("", START_US, "ann", START_US + 5 * second, "bob"),
        ("", START_US + 10 * second, "eve", None, None),
    ]


def test_closed_queue_leaves_others_open(writer: Writing) -> None:
    writer.do(close("one"))
    answers = writer.batch(admit("r-1", queue="one"), admit("r-2", queue="two"))
    assert [refused(answer) for answer in answers] == [True, False]


def test_opening_one_queue_leaves_the_others_and_the_ledger_closed(writer: Writing) -> None:
    writer.batch(close("one"), close("two"))
    assert writer.do(reopen("one")) == 1
    answers = writer.batch(admit("r-1", queue="one"), admit("r-2", queue="two"))
    assert [refused(answer) for answer in answers] == [False, True]
    writer.do(close())
    assert writer.do(reopen("one")) == 0
    assert refused(writer.batch(admit("r-3", queue="one"))[0])


def test_opening_all_opens_every_queue(writer: Writing) -> None:
    writer.batch(close("one"), close())
    assert writer.do(reopen()) == 2
    assert not refused(writer.batch(admit("r-1", queue="one"))[0])


def test_closure_survives_restarts_and_belongs_to_no_projection(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.batch(admit("r-1"), close())
    with writing(database_url) as writer:
        assert refused(writer.batch(admit("r-2"))[0])
    assert verify_replay(database_url) == []


async def test_other_processes_refuse_at_once_and_tell_it(database_url: str) -> None:
    first, second = await Ledger.open(database_url), await Ledger.open(database_url)
    try:
        await first.submit(close("default"))
        with pytest.raises(AdmissionClosed):
            await second.submit(admit())
        assert (await read_head(second.reader)).closed_queues == ("default",)
        await second.submit(reopen())
        await first.submit(admit())
        assert (await read_head(first.reader)).closed_queues == ()
    finally:
        await first.close()
        await second.close()
