"""A check-up of a ledger's files: the key's rights, and a log that does not become shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.ledger.checkup import check_up
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.sqlite import checkup
from rollbook.ledger.sqlite.engines import key_path
from rollbook.ledger.urls import parse_url
from tests.support import ledger as make


async def diagnoses(database_url: str) -> dict[str, Diagnosis]:
    return {diagnosis.subject: diagnosis async for diagnosis in check_up(parse_url(database_url))}


async def test_a_check_up_makes_no_key(database_url: str) -> None:
    assert (await diagnoses(database_url))["secret key"].level == "ok"
    assert not key_path(parse_url(database_url)).exists()


async def test_a_key_that_is_gone_is_told(ledger: Ledger, database_url: str) -> None:
    await ledger.submit(make.admit())
    key_path(parse_url(database_url)).unlink()
    found = (await diagnoses(database_url))["secret key"]
    assert (found.level, "is gone" in found.text, "put it back" in (found.fix or "")) == ("error", True, True)


async def test_a_key_that_others_may_read_is_told(ledger: Ledger, database_url: str) -> None:
    path = key_path(parse_url(database_url))
    assert "key file" not in await diagnoses(database_url)
    path.chmod(0o640)
    found = (await diagnoses(database_url))["key file"]
    assert (found.level, found.fix) == ("error", f"run `chmod 600 {path}`")


async def test_a_log_that_became_long_is_told(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.submit(make.scheduler())
    assert "write-ahead log" not in await diagnoses(database_url)
    monkeypatch.setattr(checkup, "LARGE_LOG_BYTES", 1)
    assert (await diagnoses(database_url))["write-ahead log"].level == "warning"


async def test_little_room_is_told_and_hardly_any_must_be_seen_to(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(checkup, "LITTLE_FREE_BYTES", 0)
    assert (await diagnoses(database_url))["disk"].level == "ok"
    monkeypatch.setattr(checkup, "LITTLE_FREE_BYTES", 1 << 80)
    assert (await diagnoses(database_url))["disk"].level == "warning"
    monkeypatch.setattr(checkup, "LEAST_FREE_BYTES", 1 << 80)
    assert (await diagnoses(database_url))["disk"].level == "error"


@pytest.mark.parametrize(("kind", "level"), [("nfs4", "error"), ("tmpfs", "warning"), ("ext4", "ok")])
async def test_where_the_file_lies_is_judged(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, level: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 8:1 / / rw - {kind} source rw\n")
    monkeypatch.setattr(checkup, "MOUNTS", mounts)
    assert (await diagnoses(database_url))["file system"].level == level
