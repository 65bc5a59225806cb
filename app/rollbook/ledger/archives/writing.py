"""Writing an archive's file: whole under its name, or not there. Nothing of the ledger is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from rollbook.ledger.database import Snapshot
from rollbook.ledger.files import FileRefused, publish

from .file import FORMAT, ArchiveDamaged, ArchiveWriter, Head

GROUP_ROLLOUTS = 256
GROUP_EVENTS = 1_000
"""How many events the rollouts have that are looked for at once, if they are more than one."""
PAGE_EVENTS = 128
"""Requests and samples may be large, and a page of them lies in memory."""

_DUE = (
    "SELECT r.number, r.rollout_id, r.seq, r.head FROM rollouts r WHERE r.number > ? AND r.finished_at IS NOT NULL"
    " AND r.finished_at < ? AND r.scheduler IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM archived_rollouts s WHERE s.number = r.number) ORDER BY r.number LIMIT ?"
)

DueRow = tuple[int, str, int, bytes]


def any_due(snapshot: Snapshot, before_at: int) -> bool:
    """Whether a rollout ended before then, in all respects, and is not archived."""
    return bool(snapshot.rows(_DUE, (0, before_at, 1)))


def write_file(snapshot: Snapshot, descriptor: int, path: Path, *, before_at: int, now_us: int) -> bool:
    """Write all rollouts that are over since before ``before_at``; False where there are none, and no file then.

    Raises:
        FileRefused: an event is not as it was written, or does not fit its rollout's row.
        OSError: the disk is full, or the like.
    """
    if not any_due(snapshot, before_at):
        return False
    os.ftruncate(descriptor, 0)
    with open(descriptor, "wb", closefd=False) as sink:
        writer = ArchiveWriter(sink, Head(FORMAT, uuid4().hex, before_at, now_us))
        try:
            for group in _groups(snapshot, before_at):
                _write_group(snapshot, writer, group)
            writer.close()
        except ArchiveDamaged as error:
            raise FileRefused(f"{error}; nothing was archived, look with `rollbook audit verify`") from error
        finally:
            writer.let_go()  # while the sink is open: what the compressor holds back must not find it closed
    publish(descriptor, path)
    return True


def _groups(snapshot: Snapshot, before_at: int) -> Iterator[list[DueRow]]:
    last = 0
    while page := snapshot.rows(_DUE, (last, before_at, GROUP_ROLLOUTS)):
        last = page[-1][0]
        group: list[DueRow] = []
        size = 0
        for number, rollout_id, seq, head in page:
            if group and size + seq > GROUP_EVENTS:
                yield group
                group, size = [], 0
            group.append((number, rollout_id, seq, head))
            size += seq
        yield group


def _write_group(snapshot: Snapshot, writer: ArchiveWriter, group: list[DueRow]) -> None:
    numbers = [number for number, *_ in group]
    waiting = iter(group)
    at: DueRow = next(waiting)
    writer.begin(at[0], at[1])
    after = (0, 0)
    while page := snapshot.events_of(numbers, after=after, limit=PAGE_EVENTS):
        after = (page[-1][1], page[-1][2])
        start = 0
        for index, row in enumerate(page):
            while row[1] != at[0]:
                writer.add([_row(found) for found in page[start:index]])
                start = index
                writer.end(seq=at[2], head=at[3])
                at = next(waiting)
                writer.begin(at[0], at[1])
        writer.add([_row(found) for found in page[start:]])
    writer.end(seq=at[2], head=at[3])
    for number, rollout_id, seq, head in waiting:
        writer.begin(number, rollout_id)
        writer.end(seq=seq, head=head)


def _row(found: tuple[object, ...]) -> tuple[int, int, int, str, int, int, bytes, bytes]:
    return tuple(found)  # type: ignore[return-value]
