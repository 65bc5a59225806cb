"""Every statement of the hot path finds its rows by an index: none walks through all rollouts there ever were.

It is planned once for all parameters, perhaps when the ledger is still empty; both plans must do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.ledger import reader
from rollbook.ledger.postgres import store
from rollbook.ledger.postgres.connecting import PLANNING
from rollbook.ledger.postgres.dialect import STATEMENTS, numbered
from rollbook.ledger.statements import SELECT_LATE, SELECT_STATE, STATE_COLUMNS
from tests.support.ledger import Writing, admit, cancel, claim, scheduler
from tests.support.sql import Shell, shell

FINISHED = 20_000
"""Far more than what is live, as after a while of work."""


@pytest.fixture
def connection(writer: Writing, database_url: str) -> Iterator[Shell]:
    """A connection as the writer and the short reads have it, on a ledger where one rollout ended and some are live."""
    writer.batch(scheduler(), *(admit(f"r-{i}", agent_timeout_us=10**9) for i in range(200)))
    writer.do(claim(limit=50))
    writer.do(cancel("r-199"))
    with shell(database_url) as opened:
        for setting in PLANNING:
            opened.rows(f"SET {setting}")
        yield opened


def fill(connection: Shell) -> None:
    """As many finished rollouts as there are after a while, and the statistics that the server gathers then."""
    copied = ", ".join(
        {"number": "1000 + n", "rollout_id": "'old-' || n", "finished_at": "finished_at - n"}.get(name, name)
        for name in STATE_COLUMNS
    )
    connection.rows(
        f"INSERT INTO rollouts ({', '.join(STATE_COLUMNS)}) SELECT {copied} FROM rollouts,"
        f" generate_series(1, {FINISHED}) n WHERE rollout_id = 'r-199'"
    )
    connection.rows(
        "INSERT INTO events (position, number, seq, type, version, recorded_at, payload, hash)"
        f" SELECT 1000 + n, 1000 + n / 4, n % 4, 'x', 1, 1, '{{}}', '' FROM generate_series(1, {FINISHED}) n"
    )
    connection.rows("ANALYZE rollouts, events")


def scans(plan: Any) -> Iterator[tuple[str, str]]:
    """How a plan reads `rollouts` and `events`: the kind of scan and its index."""
    if plan.get("Relation Name") in ("rollouts", "events") and plan["Node Type"] != "Bitmap Heap Scan":
        yield plan["Node Type"].replace("Index Only", "Index"), plan.get("Index Name", "")
    if plan["Node Type"] == "Bitmap Index Scan":
        yield "Index Scan", plan["Index Name"]
    for part in plan.get("Plans", ()):
        yield from scans(part)


def plan_of(connection: Shell, statement: str) -> list[tuple[str, str]]:
    """How the statement is carried out, whatever its parameters."""
    marks = statement.count("?") or statement.count("$")
    connection.rows(f"PREPARE planned AS {numbered(statement)}")
    arguments = f"({', '.join(['NULL'] * marks)})" if marks else ""
    ((text,),) = connection.rows(f"EXPLAIN (FORMAT JSON) EXECUTE planned{arguments}")
    connection.rows("DEALLOCATE planned")
    return list(scans(json.loads(text)[0]["Plan"]))


LIVE_OR_RECENT = ["rollouts_finished", "rollouts_live"]
STATEMENTS_AND_INDEXES = {
    "a batch's rollouts": (store._OPENING, ["rollouts_rollout_id"]),
    "a batch's rollouts and keys": (store.OPENING_BY_KEY, ["rollouts_idempotency", "rollouts_rollout_id"]),
    "news": (reader._NEWS, ["events_pkey", "rollouts_pkey"]),
    "work": (
        f"{reader._WORK} WHERE {STATEMENTS.dialect.is_any('e.position', [1])[0]}",
        ["events_pkey", "rollouts_pkey"],
    ),
    "by ids": (next(STATEMENTS.states("rollout_id", ["r"]))[0], ["rollouts_rollout_id"]),
    "by numbers": (next(STATEMENTS.states("number", [1]))[0], ["rollouts_pkey"]),
    "by id": (f"{SELECT_STATE} WHERE rollout_id = ?", ["rollouts_rollout_id"]),
    "claim": (STATEMENTS.claimable(["q"], after=0, limit=1)[0], ["rollouts_claimable"]),
    "open attempts": (STATEMENTS.open_attempts(["s"])[0], ["rollouts_owned"]),
    "expired leases": (STATEMENTS.select_expired, ["rollouts_live"]),
    "queued deadlines": (SELECT_LATE, ["rollouts_deadline"]),
    "orphaned attempts": (STATEMENTS.select_orphaned, ["rollouts_owned"]),
    "a scheduler's own": (f"{SELECT_STATE} WHERE scheduler IS NOT NULL AND scheduler = ?", ["rollouts_owned"]),
    "live leases": (STATEMENTS.select_live, ["rollouts_live"]),
    "cancel all": (STATEMENTS.cancellable(None, 0)[0], LIVE_OR_RECENT),
    # Old rollouts may share the prefix by the million, so the ids' own index is the wrong one.
    "cancel a prefix": (STATEMENTS.cancellable("run-", 0)[0], LIVE_OR_RECENT),
}
EXPECTED = {name: [("Index Scan", index) for index in indexes] for name, (_, indexes) in STATEMENTS_AND_INDEXES.items()}


def plans(connection: Shell) -> dict[str, list[tuple[str, str]]]:
    return {name: sorted(plan_of(connection, text)) for name, (text, _) in STATEMENTS_AND_INDEXES.items()}


def test_rows_are_found_by_an_index_while_the_ledger_is_young(connection: Shell) -> None:
    assert plans(connection) == EXPECTED


def test_rows_are_found_by_an_index_when_the_ledger_has_grown(connection: Shell) -> None:
    fill(connection)
    assert plans(connection) == EXPECTED
