"""Passes over a ledger hold a part of it in memory, however long it is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.past import Moment, ledger_then
from rollbook.ledger.replay import replay, verify_replay
from tests.support.ledger import Writing, admit, claim, enter, finish, poll, scheduler

SMALL, LARGE = 400, 2_400
GROWTH = 2.5
"""Six times as much to read may fill pages that were half empty; what is kept for each rollout would be six times."""
TEXT = b'{"text":"%s"}' % (b"x" * 400)


def add(writer: Writing, first: int, last: int) -> None:
    """Rollouts that are over, about eight events each."""
    for start in range(first, last, 200):
        names = [f"r-{number}" for number in range(start, start + 200)]
        writer.batch(*(admit(name, request=TEXT) for name in names))
        writer.do(claim(limit=200))
        writer.batch(*(enter(name) for name in names), *(poll(name) for name in names))
        writer.batch(*(finish(name, sample=TEXT) for name in names))


def peak(work: Callable[[], object]) -> int:
    """The most memory that it holds at once, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_replay_audit_and_the_past_take_constant_memory(writer: Writing, database_url: str) -> None:
    passes: list[Callable[[], object]] = [
        lambda: replay(database_url),
        lambda: verify_replay(database_url),
        lambda: audit(database_url),
        lambda: ledger_then(database_url, Moment(position=2**62)),
    ]
    writer.do(scheduler())
    add(writer, 0, SMALL)
    for work in passes:
        work()  # what is imported and cached once does not count
    small = [peak(work) for work in passes]
    add(writer, SMALL, LARGE)
    large = [peak(work) for work in passes]
    assert [more < GROWTH * less for less, more in zip(small, large, strict=True)] == [True] * len(passes), (
        small,
        large,
    )


def test_archive_takes_constant_memory(writer: Writing, database_url: str, tmp_path: Path) -> None:
    writer.do(scheduler())
    add(writer, 0, SMALL)
    archive(database_url, before_at=2**62, to=tmp_path / "first.jsonl.gz")
    add(writer, SMALL, 2 * SMALL)
    small = peak(lambda: archive(database_url, before_at=2**62, to=tmp_path / "small.jsonl.gz"))
    add(writer, 2 * SMALL, LARGE)
    large = peak(lambda: archive(database_url, before_at=2**62, to=tmp_path / "large.jsonl.gz"))
    assert large < GROWTH * small
