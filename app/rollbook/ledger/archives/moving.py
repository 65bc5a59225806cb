"""`archive`: events of rollouts that are over go to a file, and stubs of theirs stay. Safe to stop at any moment.

In this order: the file is written under another name, flushed to disk and given its name; then all of it is read again
and every chain in it checked; only then do events leave the ledger, some at a time, each portion in one transaction
with the stubs that stand for it. Whatever stops it, the same command goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.ledger.clock import host_clock_us
from rollbook.ledger.database import Database, Turn, Upkeep, database_of
from rollbook.ledger.files import FileRefused, sole_writer
from rollbook.ledger.schema import check_database
from rollbook.ledger.statements import Dialect
from rollbook.ledger.urls import parse_url
from rollbook_projections.text import column_text

from .file import ArchiveDamaged, ArchiveFile, FiledRollout, Head, sha256_of
from .stubs import NO_STUBS, Tally
from .writing import any_due, write_file

PORTION_ROLLOUTS = 128
PORTION_EVENTS = 500
"""What leaves the ledger in one transaction, if it is more than one rollout. Writers wait as long as that takes."""

_NEW_ARCHIVE = (
    "INSERT INTO archives (archive_id, file, sha256, size_bytes, before_at, made_at, file_rollouts, file_events,"
    " rollouts, events, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?)"
)
_KNOWN_ARCHIVE = "SELECT sha256, rollouts, events, digest, completed_at FROM archives WHERE archive_id = ?"
_GROWN = "UPDATE archives SET rollouts = ?, events = ?, digest = ? WHERE archive_id = ?"
_COMPLETE = "UPDATE archives SET completed_at = ? WHERE archive_id = ?"
_NEW_STUB = (
    "INSERT INTO archived_rollouts (number, archive_id, seq, head, first_position, last_position, archiving)"
    " VALUES (?, ?, ?, ?, ?, ?, 1)"
)


class Moved(msgspec.Struct, frozen=True):
    """What was done: in which archive it is, if there was anything to archive, and how much left the ledger now."""

    archive_id: str | None
    rollouts: int
    events: int
    size_bytes: int


def archive(url: str | sa.URL, *, before_at: int, to: Path) -> Moved:
    """Move the events of rollouts that ended before ``before_at`` (microseconds, UTC) and have no open attempt.

    A file that is there already and belongs to an archive that was stopped is finished, with what it holds.

    Raises:
        SchemaError: there is no ledger, or one of another version.
        FileRefused: the file or the ledger is not as it must be.
        LedgerUnavailable: the database cannot be read or written; what was moved so far is moved.
        OSError: the file cannot be written or read.
    """
    database = database_of(parse_url(url) if isinstance(url, str) else url)
    check_database(database)
    to = to.absolute()
    with sole_writer(to) as descriptor:
        if not to.exists():
            with database.snapshot() as snapshot:
                if not write_file(snapshot, descriptor, to, before_at=before_at, now_us=host_clock_us()):
                    return Moved(None, 0, 0, 0)
        elif _is_complete(database, to, before_at):
            return Moved(None, 0, 0, 0)
        return _move(database, to)


def _is_complete(database: Database, to: Path, before_at: int) -> bool:
    """Whether the file's archive is, and nothing else is left to do.

    Raises:
        FileRefused: it is, and there are other rollouts to archive.
    """
    head = _head(to)
    with database.snapshot() as snapshot:
        found = snapshot.rows(_KNOWN_ARCHIVE, (head.archive_id,))
        if not found or found[0][-1] is None:
            return False
        if any_due(snapshot, before_at):
            raise FileRefused(f"{to} holds an archive that is complete already; name another file")
    return True


def _head(path: Path) -> Head:
    try:
        file = ArchiveFile(path)
    except ArchiveDamaged as error:
        raise FileRefused(f"{error}; it was left as it is, name another file") from error
    file.close()
    return file.head


def _move(database: Database, path: Path) -> Moved:
    """Take out of the ledger what the file was found to hold."""
    moved = Tally()
    whole = Tally()
    for rollout in _read(path):
        whole.add(rollout.stub)
    archive = _File(path, _head(path), whole)
    with database.upkeep() as upkeep:
        for portion in _portions(_read(path)):
            started = time.monotonic()
            with upkeep.turn() as turn:
                new = _move_portion(turn, database.dialect, archive, portion)
            for rollout in new:
                moved.add(rollout.stub)
            # As long for others as for this: a writer that waits is next.
            time.sleep(time.monotonic() - started)
        _complete(upkeep, archive)
    return Moved(archive.head.archive_id, moved.rollouts, moved.events, archive.size_bytes)


def _read(path: Path) -> Iterator[FiledRollout]:
    try:
        file = ArchiveFile(path)
        try:
            yield from file.rollouts()
        finally:
            file.close()
    except ArchiveDamaged as error:
        raise FileRefused(
            f"{error}; events that are not in it are still in the ledger, name another file for them"
        ) from error


class _File:
    """The file as it was found to be."""

    def __init__(self, path: Path, head: Head, tally: Tally) -> None:
        # A name may hold bytes that are no text, as every free text may.
        self.name = column_text(path.name) or ""
        self.head = head
        self.tally = tally
        self.sha256 = sha256_of(path)
        self.size_bytes = path.stat().st_size


def _portions(rollouts: Iterable[FiledRollout]) -> Iterator[list[FiledRollout]]:
    portion: list[FiledRollout] = []
    events = 0
    for rollout in rollouts:
        if portion and (len(portion) == PORTION_ROLLOUTS or events + rollout.stub.seq > PORTION_EVENTS):
            yield portion
            portion, events = [], 0
        portion.append(rollout)
        events += rollout.stub.seq
    if portion:
        yield portion


def _move_portion(turn: Turn, dialect: Dialect, file: _File, portion: Sequence[FiledRollout]) -> list[FiledRollout]:
    """One transaction's work; the rollouts that had not left yet."""
    archive_id = file.head.archive_id
    tally = _registered(turn, file)
    new = _not_moved(turn, dialect, archive_id, portion)
    if not new:
        return new
    numbers = [rollout.stub.number for rollout in new]
    turn.change_all(
        _NEW_STUB,
        [
            (stub.number, archive_id, stub.seq, stub.head, stub.first_position, stub.last_position)
            for stub in (rollout.stub for rollout in new)
        ],
    )
    chosen, parameters = dialect.is_any("number", numbers)
    gone = turn.change(f"DELETE FROM events WHERE {chosen}", parameters)
    if gone != sum(rollout.stub.seq for rollout in new):
        raise FileRefused(
            f"rollouts {new[0].rollout_id!r} to {new[-1].rollout_id!r} have {gone} events, which is not what their "
            "rows say; nothing of them was moved, look with `rollbook audit verify`"
        )
    turn.change(f"UPDATE archived_rollouts SET archiving = 0 WHERE {chosen}", parameters)
    for rollout in new:
        tally.add(rollout.stub)
    turn.change(_GROWN, (tally.rollouts, tally.events, tally.digest, archive_id))
    return new


def _registered(turn: Turn, file: _File) -> Tally:
    """The archive's row, made if it is not there: what has left the ledger for it so far."""
    head = file.head
    found = turn.rows(_KNOWN_ARCHIVE, (head.archive_id,))
    if not found:
        turn.change(
            _NEW_ARCHIVE,
            (
                head.archive_id,
                file.name,
                file.sha256,
                file.size_bytes,
                head.before_at,
                head.made_at,
                file.tally.rollouts,
                file.tally.events,
                NO_STUBS,
            ),
        )
        return Tally()
    sha256, rollouts, events, digest, _ = found[0]
    if bytes(sha256) != file.sha256:
        raise FileRefused(f"{file.name} is not the file that archive {head.archive_id} was begun with")
    return Tally(rollouts, events, bytes(digest))


def _not_moved(turn: Turn, dialect: Dialect, archive_id: str, portion: Sequence[FiledRollout]) -> list[FiledRollout]:
    """Those whose events are in the ledger still.

    Raises:
        FileRefused: a rollout is not this ledger's, or another archive has it.
    """
    chosen, parameters = dialect.is_any("number", [rollout.stub.number for rollout in portion])
    rows: dict[int, tuple[Any, ...]] = {
        row[0]: tuple(row[1:])
        for row in turn.rows(f"SELECT number, rollout_id, seq, head FROM rollouts WHERE {chosen}", parameters)
    }
    stubs: dict[int, str] = dict(
        turn.rows(f"SELECT number, archive_id FROM archived_rollouts WHERE {chosen}", parameters)
    )
    new = []
    for rollout in portion:
        stub = rollout.stub
        if rows.get(stub.number) != (rollout.rollout_id, stub.seq, stub.head):
            raise FileRefused(
                f"rollout {rollout.rollout_id!r} is not in this ledger as the file has it; name another file"
            )
        there = stubs.get(stub.number)
        if there is None:
            new.append(rollout)
        elif there != archive_id:
            raise FileRefused(f"rollout {rollout.rollout_id!r} is in archive {there} already; name another file")
    return new


def _complete(upkeep: Upkeep, file: _File) -> None:
    with upkeep.turn() as turn:
        tally = _registered(turn, file)
        if tally != file.tally:
            raise FileRefused(
                f"archive {file.head.archive_id} holds {tally.rollouts} rollouts instead of {file.tally.rollouts}; "
                "look with `rollbook audit verify`"
            )
        ((*_, completed_at),) = turn.rows(_KNOWN_ARCHIVE, (file.head.archive_id,))
        if completed_at is None:
            turn.change(_COMPLETE, (host_clock_us(), file.head.archive_id))
