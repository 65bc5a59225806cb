"""What the audit finds in a file: values of another type, missing guards, and damaged pages."""

import os
import random
import sqlite3
from pathlib import Path

import pytest

from rollbook.ledger.audit import MAX_FINDINGS, audit
from rollbook.ledger.schema import SchemaError
from tests.support.histories import interleaved
from tests.support.ledger import Writing, admit, ledger_path, plain, rows, writing
from tests.support.tampering import alter


@pytest.fixture
def filled(writer: Writing, database_url: str) -> str:
    interleaved(writer)
    return database_url


@pytest.mark.parametrize(
    "change",
    [
        "hash = 'text'",
        "payload = CAST(payload AS BLOB) || x'ff'",
        "payload = x'ff'",
        "payload = CAST(payload AS BLOB)",
        "hash = CAST(hash AS TEXT)",
        "version = 'one'",
    ],
)
def test_value_of_another_type_is_found(filled: str, change: str) -> None:
    alter(filled, f"UPDATE events SET {change} WHERE position = 9")
    first = next(finding for finding in audit(filled) if finding.check == "chain")
    assert first.position == 9


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


def closed_ledger(database_url: str) -> Path:
    """A ledger at rest: everything is in the one file."""
    with writing(database_url) as writer:
        interleaved(writer)
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


def test_where_no_ledger_is_the_command_is_named(empty_url: str) -> None:
    sqlite3.connect(ledger_path(empty_url)).close()
    with pytest.raises(SchemaError, match="rollbook db upgrade"):
        audit(empty_url)


def test_audit_writes_nothing(database_url: str) -> None:
    path = closed_ledger(database_url)
    before = path.read_bytes()
    audit(database_url)
    assert path.read_bytes() == before
