"""What must hold after a chaos run, whatever happened in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.following import positions_read
from tests.support.postgres import execute
from tests.support.processes import Deployment

_OF_ATTEMPTS = """
SELECT r.rollout_id, e.type, e.payload FROM events e JOIN rollouts r ON r.number = e.number ORDER BY e.number, e.seq
"""
_SESSIONS = """
SELECT pid, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def check_rollouts(deployment: Deployment, ids: list[str]) -> None:
    """Each rollout is there once and succeeded, and has one end; and the ledger is whole."""
    deployment.check_ledger()
    assert deployment.statuses() == {"success": len(ids)}
    assert {row[0] for row in deployment.rows("SELECT rollout_id FROM rollouts")} == set(ids)
    ends = deployment.rows("SELECT number, count(*) FROM events WHERE type = 'rollout_finished' GROUP BY number")
    assert [row[1] for row in ends] == [1] * len(ids)


def check_attempts(database_url: str) -> int:
    """Whatever an attempt wrote, it wrote while it was the current one of its scheduler; how many there were."""
    running: dict[str, tuple[int, Any]] = {}
    attempts = 0
    for rollout_id, kind, payload in execute(database_url, _OF_ATTEMPTS):
        event = json.loads(payload)
        if kind == "attempt_started":
            assert rollout_id not in running, f"attempts of {rollout_id} overlap"
            running[rollout_id] = (event["attempt"], event["scheduler"])
            attempts += 1
        elif "attempt" in event:
            current = running.get(rollout_id)
            assert current is not None, f"{kind} of {rollout_id} came after its attempt"
            assert current[0] == event["attempt"], f"{kind} of {rollout_id} is of another attempt"
            assert event.get("scheduler", current[1]) == current[1], f"{kind} of {rollout_id} is another scheduler's"
            if kind == "attempt_ended":
                del running[rollout_id]
    assert running == {}
    return attempts


def check_feed(database_url: str, record: Path) -> int:
    """The feed took every position in once, in their order; how many there were."""
    positions = [row[0] for row in execute(database_url, "SELECT position FROM events ORDER BY position")]
    assert positions_read(record) == positions
    return len(positions)


def check_no_session_is_left(deployment: Deployment) -> None:
    """Nobody is connected to the database any more."""
    assert execute(deployment.database_url, _SESSIONS) == []
