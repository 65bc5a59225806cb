"""Every statement of the hot path finds its rows by an index: none walks through all rollouts there ever were."""

from __future__ import annotations

import pytest

from rollbook.ledger.sqlite.dialect import STATEMENTS
from rollbook.ledger.statements import SELECT_LATE, SELECT_STATE, prefix_range
from tests.support.ledger import Writing, plain


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [
        pytest.param(
            next(STATEMENTS.states("rollout_id", ["r"] * 16))[0], ["sqlite_autoindex_rollouts_1"], id="by ids"
        ),
        pytest.param(
            next(STATEMENTS.states("idempotency_key", ["k"] * 16))[0],
            ["rollouts_idempotency"],
            id="by idempotency keys",
        ),
        pytest.param(STATEMENTS.claimable(["q"], after=0, limit=1)[0], ["rollouts_claimable"], id="claim"),
        pytest.param(
            STATEMENTS.claimable(["q"] * 3, after=0, limit=1)[0], ["rollouts_claimable"], id="claim from several queues"
        ),
        pytest.param(STATEMENTS.select_expired, ["rollouts_live"], id="expired leases"),
        pytest.param(SELECT_LATE, ["rollouts_deadline"], id="queued deadlines"),
        pytest.param(STATEMENTS.select_orphaned, ["rollouts_owned"], id="orphaned attempts"),
        pytest.param(STATEMENTS.select_live, ["rollouts_live"], id="live leases"),
        pytest.param(STATEMENTS.cancellable(None, 0)[0], ["rollouts_live", "rollouts_finished"], id="cancel all"),
        # Old rollouts may share the prefix by the million, so the ids' own index is the wrong one.
        pytest.param(
            STATEMENTS.cancellable("run-", 0)[0], ["rollouts_live", "rollouts_finished"], id="cancel a prefix"
        ),
        pytest.param(
            f"{SELECT_STATE} WHERE 1 = 1{prefix_range('run-')[0]}", ["sqlite_autoindex_rollouts_1"], id="list a prefix"
        ),
        pytest.param(
            f"{SELECT_STATE} WHERE scheduler IS NOT NULL AND scheduler = ?", ["rollouts_owned"], id="a scheduler's own"
        ),
    ],
)
def test_rollouts_are_found_by_an_index(writer: Writing, database_url: str, statement: str, indexes: list[str]) -> None:
    with plain(database_url) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()
    steps = [detail for *_, detail in plan if "rollouts" in detail]
    assert len(steps) == len(indexes), steps
    for step, index in zip(steps, indexes, strict=True):
        assert f"USING INDEX {index}" in step


def test_open_attempts_are_counted_in_their_index(writer: Writing, database_url: str) -> None:
    statement, parameters = STATEMENTS.open_attempts(["s-1", "s-2"])
    with plain(database_url) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    (step,) = [detail for *_, detail in plan if "rollouts" in detail]
    assert step.startswith("SEARCH")
    assert "USING COVERING INDEX rollouts_owned" in step
