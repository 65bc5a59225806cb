"""The audit finds any altered byte, names the first bad event, and takes damaged pages for a finding."""

import os
import random
import sqlite3
from pathlib import Path

import pytest

from rollbook.ledger.audit import MAX_FINDINGS, Finding, audit
from rollbook.ledger.schema import SchemaError, upgrade
from rollbook.ledger.urls import parse_url
from tests.support.ledger import (
    Writing,
    admit,
    cancel,
    claim,
    close,
    enter,
    finish,
    ledger_path,
    plain,
    poll,
    rows,
    scheduler,
    writing,
)

EVENT_COLUMNS = ("payload", "type", "recorded_at", "version", "seq", "number", "hash", "position")


def fill(writer: Writing) -> None:
    """Interleaved histories: some over, some open."""
    writer.batch(scheduler(), *(admit(f"r-{i}") for i in range(1, 7)))
    writer.do(claim(limit=3))
    writer.batch(*(enter(f"r-{i}") for i in range(1, 4)), *(poll(f"r-{i}") for i in range(1, 7)))
    writer.batch(finish("r-1"), close("r-2"), cancel("r-4"))
    writer.do(claim(limit=1))


@pytest.fixture
def filled(writer: Writing, database_url: str) -> str:
    fill(writer)
    return database_url


def alter(database_url: str, *statements: str) -> None:
    """Change the database behind the guards' back; they stand again afterwards."""
    with plain(database_url) as connection:
        guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, text in guards:
            connection.execute(text)


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
    "change",
    [
        "payload = payload || ' '",
        "payload = replace(payload, '1', '2')",
        "type = 'lease_renewee'",
        "type = upper(type)",
        "recorded_at = recorded_at + 1",
        "version = 2",
        "hash = zeroblob(32)",
        "hash = x'00'",
        "hash = 'text'",
        "payload = CAST(payload AS BLOB) || x'ff'",
        "payload = x'ff'",
        "payload = CAST(payload AS BLOB)",
        "hash = CAST(hash AS TEXT)",
        "version = 'one'",
        "recorded_at = -1",
    ],
)
def test_altered_event_is_named(filled: str, change: str) -> None:
    position = 9
    named = event(filled, position)
    alter(filled, f"UPDATE events SET {change} WHERE position = {position}")
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
        ("UPDATE rollouts SET head = zeroblob(32) WHERE number = 3", "chain"),
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


@pytest.mark.parametrize("guard", ["events_no_update", "events_no_delete", "events_no_replace"])
def test_missing_guard_is_found(filled: str, guard: str) -> None:
    with plain(filled) as connection:
        connection.execute(f"DROP TRIGGER {guard}")
    (finding,) = audit(filled)
    assert (finding.check, guard in str(finding)) == ("guards", True)


def test_weakened_guard_is_found(filled: str) -> None:
    with plain(filled) as connection:
        connection.execute("DROP TRIGGER events_no_update")
        connection.execute("CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT 1; END")
    assert [finding.check for finding in audit(filled)] == ["guards"]


def test_audit_stops_after_twenty_findings(writer: Writing, database_url: str) -> None:
    writer.batch(*(admit(f"r-{i}") for i in range(1, 200)))
    alter(database_url, "UPDATE events SET payload = '{}'")
    found = audit(database_url)
    assert [finding.position for finding in found] == list(range(1, MAX_FINDINGS + 1))


def closed_ledger(database_url: str) -> Path:
    """A ledger at rest: everything is in the one file."""
    with writing(database_url) as writer:
        fill(writer)
    path = ledger_path(database_url)
    with plain(database_url) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


def bytes_of_events(database_url: str, path: Path) -> list[int]:
    """Offsets in the file of every byte that makes an event: its columns' types and values, as SQLite lays them out."""
    data = path.read_bytes()
    offsets: list[int] = []
    text = "SELECT number, seq, type, payload, hash FROM events ORDER BY position"
    for number, seq, kind, payload, digest in rows(database_url, text):
        start = data.index(payload.encode() + digest)
        types = 6 + (1 if 2 * len(payload) + 13 < 128 else 2)
        values = (number > 1) + (seq > 1) + len(kind) + 8  # 0 and 1 take no bytes, a time takes eight
        offsets.extend(range(start - types - values, start + len(payload) + len(digest)))
    return offsets


@pytest.mark.parametrize("seed", range(4))
def test_byte_flipped_in_the_file_is_found_wherever_in_an_event(database_url: str, seed: int) -> None:
    path = closed_ledger(database_url)
    chance = random.Random(seed)
    offsets = bytes_of_events(database_url, path)
    whole = path.read_bytes()
    for offset in chance.sample(offsets, 40):
        flipped = bytearray(whole)
        flipped[offset] ^= chance.randint(1, 255)
        path.write_bytes(flipped)
        assert audit(database_url), f"byte {offset} was flipped unnoticed"
    path.write_bytes(whole)
    assert audit(database_url) == []


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pages_are_findings(database_url: str, seed: int) -> None:
    with writing(database_url) as writer:
        writer.batch(*(admit(f"r-{i}", request=b'"%s"' % (b"x" * 3_000)) for i in range(100)))
    path = ledger_path(database_url)
    pages = path.stat().st_size // 4096
    chance = random.Random(seed)
    with path.open("r+b") as file:
        for page in chance.sample(range(1, pages), pages // 2):
            file.seek(page * 4096)
            file.write(chance.randbytes(4096))
    findings = audit(database_url)
    assert "pages" in {finding.check for finding in findings}
    assert len(findings) <= MAX_FINDINGS


def test_destroyed_file_is_a_finding(database_url: str) -> None:
    path = closed_ledger(database_url)
    path.write_bytes(os.urandom(path.stat().st_size))
    assert [finding.check for finding in audit(database_url)] == ["pages"]


def test_cut_file_is_a_finding(database_url: str) -> None:
    path = closed_ledger(database_url)
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    assert "pages" in {finding.check for finding in audit(database_url)}


def test_where_no_ledger_is_the_command_is_named(database_url: str) -> None:
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        audit(database_url)
    sqlite3.connect(ledger_path(database_url)).close()
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        audit(database_url)


def test_audit_writes_nothing(database_url: str) -> None:
    upgrade(parse_url(database_url))
    path = closed_ledger(database_url)
    before = path.read_bytes()
    audit(database_url)
    assert path.read_bytes() == before
