"""The audit finds any altered event, and names the first bad one."""

from typing import Any

import pytest

from rollbook.ledger.audit import MAX_FINDINGS, Finding, audit
from rollbook.ledger.schema import SchemaError
from tests.support.histories import interleaved
from tests.support.ledger import Writing, admit, rows
from tests.support.tampering import alter


@pytest.fixture
def filled(writer: Writing, database_url: str) -> str:
    interleaved(writer)
    return database_url


def event(database_url: str, position: int) -> tuple[str, int]:
    """Rollout id and seq of an event."""
    text = "SELECT r.rollout_id, e.seq FROM events e JOIN rollouts r ON r.number = e.number WHERE e.position = ?"
    ((rollout_id, seq),) = rows(database_url, text, (position,))
    return rollout_id, seq


def chain_of(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.check == "chain"]


def test_whole_ledger_has_no_findings(filled: str) -> None:
    assert audit(filled) == []


def test_empty_ledger_has_no_findings(writer: Writing, database_url: str) -> None:
    assert audit(database_url) == []


@pytest.mark.parametrize(
    ("change", "parameters"),
    [
        ("payload = payload || ' '", ()),
        ("payload = replace(payload, '1', '2')", ()),
        ("type = 'lease_renewee'", ()),
        ("type = upper(type)", ()),
        ("recorded_at = recorded_at + 1", ()),
        ("recorded_at = -1", ()),
        ("version = 2", ()),
        ("hash = ?", (bytes(32),)),
        ("hash = ?", (b"\0",)),
    ],
)
def test_altered_event_is_named(filled: str, change: str, parameters: tuple[Any, ...]) -> None:
    position = 9
    named = event(filled, position)
    alter(filled, (f"UPDATE events SET {change} WHERE position = {position}", parameters))
    first = chain_of(audit(filled))[0]
    assert (first.position, first.rollout_id, first.seq) == (position, *named)
    assert str(first).startswith(f"chain: event {position} (rollout {named[0]!r}, seq {named[1]}): ")


@pytest.mark.parametrize("position", [1, 7, 12, 19])
def test_only_the_altered_event_is_found(filled: str, position: int) -> None:
    alter(filled, f"UPDATE events SET payload = '{{}}' WHERE position = {position}")
    assert [finding.position for finding in audit(filled)] == [position]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET seq = 77 WHERE position = 9",
        "UPDATE events SET number = 77 WHERE position = 9",
        "UPDATE events SET number = 5, seq = 66 WHERE position = 9",
        "DELETE FROM events WHERE position = 9",
    ],
)
def test_moved_or_missing_event_breaks_its_rollouts_chain(filled: str, statement: str) -> None:
    rollout_id, _ = event(filled, 9)
    alter(filled, statement)
    findings = audit(filled)
    assert min(finding.position for finding in chain_of(findings) if finding.position) >= 9
    assert rollout_id in " ".join(map(str, findings))


def test_exchanged_payloads_are_found(filled: str) -> None:
    alter(
        filled,
        "CREATE TEMP TABLE old AS SELECT position, payload FROM events WHERE position IN (1, 2)",
        "UPDATE events SET payload = (SELECT payload FROM old WHERE old.position = 3 - events.position)"
        " WHERE position IN (1, 2)",
    )
    assert [finding.position for finding in audit(filled)] == [1, 2]


def test_cut_off_history_is_found_by_its_row(filled: str) -> None:
    last = rows(filled, "SELECT max(position) FROM events")[0][0]
    rollout_id, seq = event(filled, last)
    alter(filled, f"DELETE FROM events WHERE position = {last}")
    findings = audit(filled)
    assert [finding.check for finding in findings] == ["head", "counts", "counts"]
    assert rollout_id in findings[0].message
    assert f"seq {seq}" in findings[0].message


def test_history_that_goes_on_after_its_row_is_found(filled: str) -> None:
    rollout_id, _ = event(filled, 1)
    alter(
        filled,
        "UPDATE rollouts SET seq = 2, head = (SELECT hash FROM events WHERE number = 1 AND seq = 2) WHERE number = 1",
    )
    findings = audit(filled)
    assert {(finding.check, finding.rollout_id) for finding in findings} == {("chain", rollout_id)}
    assert (findings[0].seq, "at which its rollout's row ends" in findings[0].message) == (3, True)


@pytest.mark.parametrize(
    "statement, check",
    [
        ("UPDATE rollouts SET head = substr(head, 2) WHERE number = 3", "chain"),
        ("UPDATE rollouts SET seq = 99 WHERE number = 3", "head"),
        ("DELETE FROM rollouts WHERE number = 3", "chain"),
        ("UPDATE ledger_head SET events = events + 1", "counts"),
        ("UPDATE ledger_head SET position = position + 1", "counts"),
        ("UPDATE ledger_head SET number = number - 1", "counts"),
        ("DELETE FROM ledger_head", "counts"),
    ],
)
def test_heads_and_counts_that_do_not_fit_are_found(filled: str, statement: str, check: str) -> None:
    alter(filled, statement)
    assert {finding.check for finding in audit(filled)} == {check}


def test_audit_stops_after_twenty_findings(writer: Writing, database_url: str) -> None:
    writer.batch(*(admit(f"r-{i}") for i in range(1, 200)))
    alter(database_url, "UPDATE events SET payload = '{}'")
    found = audit(database_url)
    assert [finding.position for finding in found] == list(range(1, MAX_FINDINGS + 1))


def test_where_no_ledger_is_the_command_is_named(empty_url: str) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        audit(empty_url)
