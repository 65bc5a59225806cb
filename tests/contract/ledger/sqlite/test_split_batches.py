"""A batch that is carried out command by command, because one of them is bad, answers each by what became of it."""

from __future__ import annotations

import sqlite3

from rollbook.ledger.refusals import CommandFailed, LedgerUnavailable
from rollbook_projections import RolloutState
from tests.support import faults
from tests.support.ledger import admit, rows, writing


def test_what_was_committed_before_the_disk_filled_up_is_answered_as_done(database_url: str) -> None:
    with writing(database_url):
        pass  # migrated before commits begin to fail
    commits = 0

    def fail_from_second(connection: sqlite3.Connection) -> None:
        nonlocal commits
        commits += 1
        if commits > 1:
            raise sqlite3.OperationalError("disk I/O error")
        faults.commit(connection)

    with faults.commits(fail_from_second), writing(database_url) as writer:
        answers = writer.batch(admit("first"), admit("\ud800"), admit("second"), admit("third"))
    assert [type(answer) for answer in answers] == [RolloutState, CommandFailed, LedgerUnavailable, LedgerUnavailable]
    assert rows(database_url, "SELECT rollout_id FROM rollouts") == [("first",)]
    # The disk is asked once more, not once for each command that is left.
    assert commits == 2
