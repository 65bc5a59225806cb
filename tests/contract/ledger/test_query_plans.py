"""Every statement of the hot path finds its rows by an index: none walks through all rollouts there ever were."""

from __future__ import annotations

import pytest

from rollbook.ledger import statements as sql
from tests.support.ledger import Writing, plain

CANCEL_BY_PREFIX = sql.select_cancellable("run-")[0]
CANCEL_ALL = sql.select_cancellable(None)[0]


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [
        pytest.param(sql.select_by_ids(16)[0], ["sqlite_autoindex_rollouts_1"], id="by ids"),
        pytest.param(sql.select_claimable(1), ["rollouts_claimable"], id="claim"),
        pytest.param(sql.select_claimable(3), ["rollouts_claimable"], id="claim from several queues"),
        pytest.param(sql.SELECT_EXPIRED, ["rollouts_live"], id="expired leases"),
        pytest.param(sql.SELECT_LATE, ["rollouts_deadline"], id="queued deadlines"),
        pytest.param(sql.SELECT_ORPHANED, ["rollouts_owned"], id="orphaned attempts"),
        pytest.param(sql.SELECT_LIVE, ["rollouts_live"], id="live leases"),
        pytest.param(CANCEL_ALL, ["rollouts_live", "rollouts_finished"], id="cancel all"),
        # Old rollouts may share the prefix by the million, so the ids' own index is the wrong one.
        pytest.param(CANCEL_BY_PREFIX, ["rollouts_live", "rollouts_finished"], id="cancel a prefix"),
    ],
)
def test_rollouts_are_found_by_an_index(writer: Writing, database_url: str, statement: str, indexes: list[str]) -> None:
    with plain(database_url) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()
    steps = [detail for *_, detail in plan if "rollouts" in detail]
    assert len(steps) == len(indexes), steps
    for step, index in zip(steps, indexes, strict=True):
        assert f"USING INDEX {index}" in step
