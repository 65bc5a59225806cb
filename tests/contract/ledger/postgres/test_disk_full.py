"""A server whose disk is full: callers get an error, nothing half-written shows, and all goes on once there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.postgres import store as store_module
from rollbook.ledger.refusals import CommandFailed, LedgerUnavailable
from rollbook.ledger.replay import verify_replay
from rollbook_projections import RolloutState
from tests.support.ledger import Writing, admit, poll, rows
from tests.support.sql import shell

# The error is the server's own, raised where a table cannot grow: any place in the transaction is as good.
FULL = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$
"""


@contextmanager
def room_for(database_url: str, *, events: int) -> Iterator[None]:
    """No transaction that would make the ledger longer than that succeeds meanwhile."""
    with shell(database_url) as connection:
        connection.rows(FULL)
        connection.rows(
            f"CREATE TRIGGER no_room BEFORE UPDATE ON ledger_head FOR EACH ROW WHEN (NEW.events > {events})"
            " EXECUTE FUNCTION no_room()"
        )
        try:
            yield
        finally:
            connection.rows("DROP FUNCTION no_room CASCADE")


@pytest.fixture(autouse=True)
def given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RETRY_SEC", 0.05)


def test_callers_get_an_error_and_nothing_half_written_shows(writer: Writing, database_url: str) -> None:
    writer.do(admit("before"))
    before = rows(database_url, "SELECT * FROM events")
    with room_for(database_url, events=1):
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=r"cannot be written now.*No space left"):
                writer.batch(*(admit(f"big-{i}") for i in range(50)))
        assert rows(database_url, "SELECT * FROM events") == before
    answers = writer.batch(admit("after"), poll("before"))
    assert [answer.rollout_id for answer in answers] == ["after", "before"]
    assert (audit(database_url), verify_replay(database_url)) == ([], [])


def test_what_was_committed_before_the_disk_filled_up_is_answered_as_done(writer: Writing, database_url: str) -> None:
    with room_for(database_url, events=1):
        # A command that the database refuses splits the batch: the others are carried out one by one.
        answers = writer.batch(admit("first"), admit("\ud800"), admit("second"), admit("third"))
    assert [type(answer) for answer in answers] == [RolloutState, CommandFailed, LedgerUnavailable, LedgerUnavailable]
    assert rows(database_url, "SELECT rollout_id FROM rollouts") == [("first",)]
    assert (audit(database_url), verify_replay(database_url)) == ([], [])
