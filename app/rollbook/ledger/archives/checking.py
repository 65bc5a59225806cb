"""Whether what stands in the ledger for archived events is what `archive` left there, and whether a file fits it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.ledger.database import Snapshot, database_of
from rollbook.ledger.schema import check_database
from rollbook.ledger.urls import parse_url

from .file import ArchiveDamaged, ArchiveFile, FiledRollout, sha256_of
from .stubs import STUB_COLUMNS, Stub, Tally, stub_of

PAGE_STUBS = 1_000

_STUBS = """
    SELECT s.number, s.archive_id, s.seq, s.head, s.first_position, s.last_position, s.archiving,
           r.rollout_id, r.seq, r.head, r.finished_at, r.scheduler, r.request_position, r.result_position,
           EXISTS (SELECT 1 FROM events e WHERE e.number = s.number)
    FROM archived_rollouts s LEFT JOIN rollouts r ON r.number = s.number
    WHERE s.number > ? ORDER BY s.number LIMIT ?
"""
_ARCHIVES = "SELECT archive_id, file, rollouts, events, digest, completed_at, file_rollouts, file_events FROM archives"


class ArchivedTotals(msgspec.Struct):
    """What all stubs add up to."""

    rollouts: int = 0
    events: int = 0
    position: int = 0
    number: int = 0


class ArchiveReport(msgspec.Struct, frozen=True):
    """What a file holds, and what is wrong with it or with what the ledger says of it."""

    archive_id: str
    rollouts: int
    events: int
    findings: list[str]


def check_archives(snapshot: Snapshot, totals: ArchivedTotals) -> Iterator[str]:
    """What is wrong with stubs and archives; ``totals`` is what they add up to when it ends.

    A stub must fit its rollout's row, and the stubs of an archive must add up to the digest that the archive's row
    keeps: one that was made, changed or taken away by other means does not.
    """
    tallies: dict[Any, Tally] = {}
    last = -(2**63)
    while page := snapshot.rows(_STUBS, (last, PAGE_STUBS)):
        last = page[-1][0]
        totals.number = max(totals.number, last)
        for row in page:
            stub = stub_of(row)
            if stub is None:
                yield f"what stands for the events of rollout number {row[0]} is damaged"
                continue
            tallies.setdefault(row[1], Tally()).add(stub)
            totals.rollouts += 1
            totals.events += stub.seq
            totals.position = max(totals.position, stub.last_position)
            wrong = _wrong_stub(stub, *row[6:])
            if wrong is not None:
                yield f"what stands for the events of rollout number {stub.number} is wrong: {wrong}"
    for archive_id, file, rollouts, events, digest, completed_at, file_rollouts, file_events in snapshot.rows(
        _ARCHIVES
    ):
        tally = tallies.pop(archive_id, Tally())
        name = f"archive {_text(archive_id)} ({_text(file)})"
        if (tally.rollouts, tally.events) != (rollouts, events):
            yield (
                f"{name} says that it took {events} events of {rollouts} rollouts; "
                f"what stands for them says {tally.events} of {tally.rollouts}"
            )
        elif tally.digest != digest:
            yield f"{name}: what stands for its rollouts does not add up to its digest; something was altered"
        elif completed_at is not None and (rollouts, events) != (file_rollouts, file_events):
            yield f"{name} is complete with {rollouts} rollouts, but its file was made with {file_rollouts}"
    for archive_id, tally in tallies.items():
        yield f"{tally.rollouts} rollouts say that they are in archive {_text(archive_id)}, which there is not"


def check_file(path: Path) -> ArchiveReport:
    """Whether a file is whole by itself: every chain, the order, and the sum of all.

    Raises:
        OSError: it cannot be read.
    """
    return _report(path, lambda rollouts, _: rollouts)


def check_file_of(url: str | sa.URL, path: Path) -> ArchiveReport:
    """Whether a file is whole, and the one whose events the ledger says are in it.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        LedgerUnavailable: the database cannot be read.
        OSError: the file cannot be read.
    """
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    with database.snapshot() as snapshot:

        def compared(rollouts: Iterator[FiledRollout], archive_id: str) -> Iterator[FiledRollout]:
            return _compared(snapshot, path, archive_id, rollouts)

        return _report(path, compared)


def _report(path: Path, passed_through: Any) -> ArchiveReport:
    try:
        file = ArchiveFile(path)
    except ArchiveDamaged as error:
        return ArchiveReport("", 0, 0, [str(error)])
    findings: list[str] = []
    try:
        for _ in passed_through(file.rollouts(), file.head.archive_id):
            pass
    except ArchiveDamaged as error:
        findings.append(str(error))
    finally:
        file.close()
    return ArchiveReport(file.head.archive_id, file.tally.rollouts, file.tally.events, findings)


def _compared(
    snapshot: Snapshot, path: Path, archive_id: str, rollouts: Iterator[FiledRollout]
) -> Iterator[FiledRollout]:
    """The rollouts, as far as the ledger's stubs are theirs.

    Raises:
        ArchiveDamaged: the first difference.
    """
    found = snapshot.rows(
        "SELECT sha256, rollouts, events, completed_at FROM archives WHERE archive_id = ?", (archive_id,)
    )
    if not found:
        raise ArchiveDamaged(f"the ledger knows of no archive {archive_id}; nothing was taken out of it for this file")
    sha256, _, _, completed_at = found[0]
    if completed_at is None:
        raise ArchiveDamaged(
            f"archive {archive_id} is not complete; finish it with `rollbook ledger archive --to {path}`"
        )
    if bytes(sha256) != sha256_of(path):
        raise ArchiveDamaged(f"{path} is not, byte for byte, the file that archive {archive_id} was made with")
    stubs = _stubs_of(snapshot, archive_id)
    for rollout in rollouts:
        if next(stubs, None) != rollout.stub:
            raise ArchiveDamaged(f"rollout {rollout.rollout_id!r}: the ledger does not say what {path} has")
        yield rollout
    for more in stubs:
        name = "a rollout" if more is None else f"rollout number {more.number}"
        raise ArchiveDamaged(f"{name} is not in {path}, but the ledger says so")


def _stubs_of(snapshot: Snapshot, archive_id: str) -> Iterator[Stub | None]:
    stream = snapshot.stream("archived_rollouts", STUB_COLUMNS, ("number",))
    while page := stream.fetch(PAGE_STUBS):
        yield from (stub_of(row) for row in page if row[1] == archive_id)


def _wrong_stub(
    stub: Stub,
    archiving: int,
    rollout_id: Any,
    seq: Any,
    head: Any,
    finished_at: Any,
    scheduler: Any,
    request_position: Any,
    result_position: Any,
    has_events: Any,
) -> str | None:
    if rollout_id is None:
        return "it has no row"
    if archiving:
        return "it was left open, so events of it can be deleted"
    if has_events:
        return "it has events in the ledger"
    if (seq, head) != (stub.seq, stub.head):
        return f"its row ends at seq {seq} with another hash, not at {stub.seq}"
    if finished_at is None or scheduler is not None:
        return "it is not over"
    ended = isinstance(result_position, int) and stub.first_position < result_position <= stub.last_position
    if request_position != stub.first_position or not ended:
        return "its row was made by events at other positions"
    return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
