"""An archive that is killed at any moment loses nothing, and the same command finishes it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rollbook.ledger.archives.checking import check_file_of
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.files import FileRefused
from tests.contract.ledger.archiver import archive_until_killed
from tests.contract.ledger.archives import assert_complete, assert_sound, events, filed, fill
from tests.support.forking import FORKED, LIMIT_SEC
from tests.support.ledger import Writing, cancel
from tests.support.sql import rows

MOMENTS = [
    ("in the file", "before", 1),
    ("in the file", "after", 11),
    ("the file's end", "before", 1),
    ("the file's end", "after", 1),
    ("the file's name", "before", 1),
    ("the file's name", "after", 1),
    ("the reading", "after", 1),
    ("a portion", "before", 1),
    ("the stubs", "after", 1),
    ("the checks", "after", 1),
    ("a portion", "after", 1),
    ("a portion", "before", 2),
    ("the checks", "after", 3),
    ("a portion", "after", 3),
    ("the end", "before", 1),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.jsonl.gz"


def killed(database_url: str, before_at: int, path: Path, place: str, when: str, count: int) -> None:
    process = FORKED.Process(target=archive_until_killed, args=(database_url, before_at, path, place, when, count))
    process.start()
    process.join(LIMIT_SEC)
    assert process.exitcode == -signal.SIGKILL
    process.close()


@pytest.mark.parametrize(("place", "when", "count"), MOMENTS)
def test_nothing_is_lost_and_the_same_command_finishes(
    writer: Writing, database_url: str, path: Path, place: str, when: str, count: int
) -> None:
    before_at = fill(writer)
    before = events(database_url)
    killed(database_url, before_at, path, place, when, count)
    assert_sound(database_url)
    left = events(database_url)
    if left != before:
        assert left | filed(path) == before
    archive(database_url, before_at=before_at, to=path)
    assert_complete(database_url, path, before)


def test_killed_again_and_again_it_is_still_finished(writer: Writing, database_url: str, path: Path) -> None:
    before_at = fill(writer)
    before = events(database_url)
    killed(database_url, before_at, path, "the file's end", "after", 1)
    counts = []
    for count in (2, 3, 4):
        killed(database_url, before_at, path, "a portion", "after", count)
        assert_sound(database_url)
        counts.append(len(events(database_url)))
    assert len(before) > counts[0] > counts[1] > counts[2]
    archive(database_url, before_at=before_at, to=path)
    assert_complete(database_url, path, before)


def test_what_ended_meanwhile_goes_to_the_next_file(writer: Writing, database_url: str, path: Path) -> None:
    before_at = fill(writer)
    killed(database_url, before_at, path, "a portion", "after", 2)
    writer.do(cancel("waits"))
    before = events(database_url) | filed(path)
    archive(database_url, before_at=before_at + 1, to=path)
    assert_complete(database_url, path, before)
    assert archive(database_url, before_at=before_at + 1, to=path.with_name("next.jsonl.gz")).rollouts == 1
    assert_sound(database_url)


def test_nothing_leaves_the_ledger_for_a_file_that_was_damaged_since(
    writer: Writing, database_url: str, path: Path
) -> None:
    before_at = fill(writer)
    killed(database_url, before_at, path, "a portion", "after", 2)
    left, whole = events(database_url), path.read_bytes()
    for damaged in (whole[:-30], whole[:200] + b"\x00" + whole[201:], b""):
        path.write_bytes(damaged)
        with pytest.raises(FileRefused):
            archive(database_url, before_at=before_at, to=path)
        assert events(database_url) == left
    path.write_bytes(whole)
    archive(database_url, before_at=before_at, to=path)
    assert_sound(database_url)


def test_unfinished_archive_is_told_from_a_finished_one(writer: Writing, database_url: str, path: Path) -> None:
    before_at = fill(writer)
    killed(database_url, before_at, path, "a portion", "after", 2)
    assert "not complete" in check_file_of(database_url, path).findings[0]
    assert rows(database_url, "SELECT completed_at FROM archives") == [(None,)]


def test_other_file_for_what_an_unfinished_archive_holds_is_finished_by_neither_twice(
    writer: Writing, database_url: str, path: Path
) -> None:
    before_at = fill(writer)
    before = events(database_url)
    killed(database_url, before_at, path, "a portion", "after", 2)
    other = path.with_name("other.jsonl.gz")
    archive(database_url, before_at=before_at, to=other)
    assert_sound(database_url)
    with pytest.raises(FileRefused, match=r"archive \w+ already"):
        archive(database_url, before_at=before_at, to=path)
    assert_sound(database_url)
    assert filed(path) | filed(other) | events(database_url) == before
