"""What the tests of archives share: a ledger with much to archive, and what must hold of it whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollbook.ledger.archives.checking import check_file_of
from rollbook.ledger.archives.file import ArchiveFile
from rollbook.ledger.audit import audit
from rollbook.ledger.replay import verify_replay
from tests.support.ledger import Writing, admit, cancel, claim, close, enter, finish, poll, scheduler
from tests.support.sql import rows

OVER = 20
"""How many rollouts are over in `fill`."""

AWKWARD = b'{"line one":\r\n "line \\u0000 two",\n\t"last": 1e2, "big": 123456789012345678901234567890}'
"""A request whose JSON holds line ends."""


def fill(writer: Writing) -> int:
    """Twenty rollouts that are over, and three that are not; a moment after all ends."""
    writer.batch(scheduler(), *(admit(f"r-{i}", request=AWKWARD) for i in range(OVER)))
    writer.batch(claim(limit=OVER // 2))
    names = [f"r-{i}" for i in range(OVER // 2)]
    writer.batch(*(enter(name) for name in names), *(poll(name) for name in names))
    writer.batch(*(finish(name) for name in names), *(cancel(f"r-{i}") for i in range(OVER // 2, OVER)))
    writer.batch(admit("runs"), admit("lost"))
    writer.do(claim(limit=2))
    writer.batch(close("lost"), enter("runs"), admit("waits"))
    writer.clock.forward(60)
    return writer.clock.now


def events(database_url: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    """All events in the ledger, by number and seq."""
    text = "SELECT number, seq, position, type, version, recorded_at, payload, hash FROM events"
    return {(row[0], row[1]): tuple(row[2:]) for row in rows(database_url, text)}


def filed(path: Path) -> dict[tuple[int, int], tuple[Any, ...]]:
    """The same of a file."""
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    file = ArchiveFile(path)
    for line in file._lines:
        if line.startswith(b'{"position"'):
            event, payload = file._event(line)
            found[event.number, event.seq] = (
                event.position,
                event.type,
                event.version,
                event.recorded_at,
                payload.decode(),
                bytes.fromhex(event.hash),
            )
    file.close()
    return found


def assert_sound(database_url: str) -> None:
    """Audit and replay find nothing."""
    assert audit(database_url) == []
    assert verify_replay(database_url) == []


def assert_complete(database_url: str, path: Path, before: dict[tuple[int, int], tuple[Any, ...]]) -> None:
    """All that is over lies in the file, the rest in the ledger, and each says so of the other."""
    assert_sound(database_url)
    moved, left = filed(path), events(database_url)
    assert moved | left == before
    assert moved.keys().isdisjoint(left)
    assert len({number for number, _ in moved}) == OVER
    report = check_file_of(database_url, path)
    assert (report.findings, report.rollouts, report.events) == ([], OVER, len(moved))
