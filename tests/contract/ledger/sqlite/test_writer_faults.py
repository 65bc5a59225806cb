"""A writer that cannot write: its callers get an error, nothing half-written shows, and it recovers by itself."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.audit import audit
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.schema import check, upgrade
from rollbook.ledger.urls import SQLITE, parse_url
from tests.support import faults
from tests.support.databases import NewLedger
from tests.support.ledger import Clock, Writing, admit, ledger_path, poll, rows, scheduler, writing

Fault = Callable[[Path], AbstractContextManager[None]]

FAULTS: dict[str, Fault] = {
    "the disk is full": faults.disk_full,
    "the database is full": faults.pages_limited,
    "files and folder are read-only": faults.read_only,
    "a foreign transaction holds the database": faults.locked_by_transaction,
    "another process holds the lock file": faults.locked_by_process,
}


@pytest.fixture
def database_url(new_ledger: NewLedger) -> Iterator[str]:
    """In a folder that everybody may enter: one fault takes the administrator's rights away."""
    with tempfile.TemporaryDirectory() as folder, new_ledger(SQLITE, Path(folder)) as url:
        Path(folder).chmod(0o777)
        yield url


@pytest.fixture(params=list(FAULTS.values()), ids=list(FAULTS))
def fault(request: pytest.FixtureRequest) -> Fault:
    made: Fault = request.param
    return made


def commands_of_every_size() -> list[cmd.Command[object]]:
    return [admit(f"big-{i}", request=b'"%s"' % (b"x" * 4_000)) for i in range(50)]


def test_callers_get_an_error_and_nothing_half_written_shows(database_url: str, fault: Fault) -> None:
    with writing(database_url) as writer:
        writer.do(admit("before"))
        writer.store.close()
        before = rows(database_url, "SELECT * FROM events")
        with fault(ledger_path(database_url)):
            for _ in range(2):
                with pytest.raises(LedgerUnavailable, match="cannot be written now"):
                    writer.batch(*commands_of_every_size())
        assert rows(database_url, "SELECT * FROM events") == before
        assert not faults.is_locked(ledger_path(database_url))
        answers = writer.batch(admit("after"), poll("before"))
        assert [answer.rollout_id for answer in answers] == ["after", "before"]
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


@pytest.mark.parametrize(
    "fault", [faults.disk_full, faults.locked_by_transaction, faults.locked_by_process], indirect=True
)
def test_open_connection_recovers_too(database_url: str, fault: Fault) -> None:
    with writing(database_url) as writer:
        writer.do(admit("before"))
        with fault(ledger_path(database_url)), pytest.raises(LedgerUnavailable):
            writer.batch(*commands_of_every_size())
        assert writer.do(poll("before")).seq == 2
    assert audit(database_url) == []


async def test_ledger_of_a_process_outlives_a_full_disk(database_url: str) -> None:
    ledger = await Ledger.open(database_url)
    await ledger.submit(admit("before"))
    with faults.disk_full(ledger_path(database_url)):
        answers = await asyncio.gather(
            *(ledger.submit(command) for command in commands_of_every_size()), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {LedgerUnavailable}
        state = await ledger.reader.state("before")
        assert state is not None
        assert state.seq == 1
    assert (await ledger.submit(poll("before"))).seq == 2
    await ledger.close()
    assert audit(database_url) == []


async def test_ledger_opens_only_where_it_can_write(database_url: str) -> None:
    with faults.read_only(ledger_path(database_url)), pytest.raises(LedgerUnavailable, match="folder"):
        await Ledger.open(database_url)
    ledger = await Ledger.open(database_url)
    await ledger.close()


async def test_ledger_that_cannot_be_read_is_not_taken_for_a_missing_one(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.do(admit("r-1"))
    with faults.read_only(ledger_path(database_url)):
        with pytest.raises(LedgerUnavailable, match="permissions"):
            check(parse_url(database_url))
        with pytest.raises(LedgerUnavailable, match="permissions"):
            audit(database_url)
        with pytest.raises(LedgerUnavailable):
            await Ledger.open(database_url)
    check(parse_url(database_url))


def test_api_that_could_not_write_extends_leases_before_it_judges(database_url: str) -> None:
    with writing(database_url, Clock()) as writer:
        writer.store.guard_leases(60_000_000)
        writer.do(admit("r-1"))
        with faults.locked_by_transaction(ledger_path(database_url)), pytest.raises(LedgerUnavailable):
            writer.do(poll("r-1"))
        writer.clock.forward(200)
        assert writer.do(poll("r-1")).status == "queued"


class TestCommitWhoseAnswerIsLost:
    def writer(self, database_url: str) -> Writing:
        upgrade(parse_url(database_url))
        return Writing(database_url)

    def test_is_recognised_by_its_events_and_not_repeated(self, database_url: str) -> None:
        left = iter([True])

        def lose_first(connection: sqlite3.Connection) -> None:
            faults.commit(connection)
            if next(left, False):
                raise sqlite3.OperationalError("disk I/O error")

        with faults.commits(lose_first):
            writer = self.writer(database_url)
            assert writer.do(admit("r-1")).seq == 1
            assert writer.do(poll("r-1")).seq == 2
            writer.store.close()
        assert rows(database_url, "SELECT type FROM events") == [("rollout_admitted",), ("lease_renewed",)]

    def test_failed_commit_is_an_error_and_leaves_nothing(self, database_url: str) -> None:
        left = iter([True])

        def fail_first(connection: sqlite3.Connection) -> None:
            if next(left, False):
                raise sqlite3.OperationalError("disk I/O error")
            faults.commit(connection)

        with faults.commits(fail_first):
            writer = self.writer(database_url)
            with pytest.raises(LedgerUnavailable):
                writer.batch(admit("r-1"), admit("r-2"))
            assert rows(database_url, "SELECT count(*) FROM events") == [(0,)]
            assert writer.do(admit("r-2")).number == 1
            writer.store.close()

    def test_anothers_events_at_the_same_position_are_not_taken_for_ours(self, database_url: str) -> None:
        left = iter([True])

        def overtaken(connection: sqlite3.Connection) -> None:
            if next(left, False):
                faults.rollback(connection)
                with closing(sqlite3.connect(ledger_path(database_url))) as foreign:
                    foreign.execute(
                        "INSERT INTO events (position, number, seq, type, version, recorded_at, payload, hash)"
                        " VALUES (1, 77, 1, 'x', 1, 1, '{}', x'00')"
                    )
                    foreign.commit()
                raise sqlite3.OperationalError("disk I/O error")
            faults.commit(connection)

        with faults.commits(overtaken):
            writer = self.writer(database_url)
            with pytest.raises(LedgerUnavailable):
                writer.do(admit("r-1"))
            writer.store.close()
        assert rows(database_url, "SELECT count(*) FROM rollouts") == [(0,)]

    def test_lost_answer_of_a_beat_is_an_error_since_a_beat_can_be_repeated(self, database_url: str) -> None:
        left = iter([False, True])

        def lose_second(connection: sqlite3.Connection) -> None:
            faults.commit(connection)
            if next(left, False):
                raise sqlite3.OperationalError("disk I/O error")

        with faults.commits(lose_second):
            writer = self.writer(database_url)
            writer.do(scheduler())
            with pytest.raises(LedgerUnavailable):
                writer.do(cmd.Beat("s-1"))
            writer.do(cmd.Beat("s-1"))
            writer.store.close()


def test_damaged_pages_are_unavailable_and_no_crash(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.batch(*commands_of_every_size())
    path = ledger_path(database_url)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    writer = Writing(database_url)
    with pytest.raises(LedgerUnavailable):
        writer.do(poll("big-1"))
    writer.store.close()
