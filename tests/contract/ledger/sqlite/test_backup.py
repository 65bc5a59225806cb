"""A backup of a live ledger: as it stood at one moment, checked, and whole under its name or not there."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rollbook.ledger.audit import audit
from rollbook.ledger.files import FileRefused, sole_writer, unfinished_path
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.replay import replay, verify_replay
from rollbook.ledger.schema import check
from rollbook.ledger.sqlite.backup import backup
from rollbook.ledger.urls import parse_url
from tests.support.histories import interleaved
from tests.support.ledger import Writing, admit, ledger_path, plain, poll


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "copies" / "copy.sqlite3"


@pytest.fixture(autouse=True)
def folder(path: Path) -> Path:
    path.parent.mkdir()
    return path.parent


def test_copy_is_the_ledger(writer: Writing, database_url: str, path: Path) -> None:
    interleaved(writer)
    copied = backup(parse_url(database_url), path)
    url = f"sqlite:///{path}"
    check(parse_url(url))
    assert audit(url) == []
    assert verify_replay(url) == []
    assert replay(url) == replay(database_url)
    head = replay(url).head
    assert (copied.events, copied.position, copied.size_bytes) == (head.events, head.position, path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600


def test_copy_is_one_file_alone(writer: Writing, database_url: str, path: Path, folder: Path) -> None:
    interleaved(writer)
    backup(parse_url(database_url), path)
    assert [found.name for found in folder.iterdir()] == [path.name]
    # No key beside it, whatever lies beside the ledger.
    assert ledger_path(database_url).parent != folder


async def test_copy_of_a_ledger_in_use_is_whole(ledger: Ledger, folder: Path) -> None:
    names = [f"r-{i}" for i in range(200)]
    await asyncio.gather(*(ledger.submit(admit(name)) for name in names))
    written = asyncio.Event()

    async def write() -> None:
        while True:
            await asyncio.gather(*(ledger.submit(poll(name)) for name in names[:20]))
            written.set()

    writing = asyncio.ensure_future(write())
    async with asyncio.timeout(60):
        for number in range(5):
            written.clear()
            await written.wait()
            path = folder / f"{number}.sqlite3"
            copied = await asyncio.to_thread(backup, ledger.url, path)
            assert await asyncio.to_thread(audit, f"sqlite:///{path}") == []
            assert await asyncio.to_thread(verify_replay, f"sqlite:///{path}") == []
            assert copied.events >= 200
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


def test_what_is_there_is_never_written_over(writer: Writing, database_url: str, path: Path) -> None:
    path.write_text("another copy")
    with pytest.raises(FileRefused, match="name another file"):
        backup(parse_url(database_url), path)
    assert path.read_text() == "another copy"
    with pytest.raises(FileRefused, match="name another file"):
        backup(parse_url(database_url), ledger_path(database_url))
    assert audit(database_url) == []


def test_only_one_writes_a_copy(writer: Writing, database_url: str, path: Path) -> None:
    with sole_writer(path), pytest.raises(FileRefused, match="another process writes"):
        backup(parse_url(database_url), path)
    backup(parse_url(database_url), path)


def test_rest_of_a_killed_copy_is_no_obstacle(writer: Writing, database_url: str, path: Path, folder: Path) -> None:
    unfinished_path(path).write_bytes(b"half a page")
    for rest in ("-journal", "-wal", "-shm"):
        path.with_name(f"{unfinished_path(path).name}{rest}").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 100)
    backup(parse_url(database_url), path)
    assert [found.name for found in folder.iterdir()] == [path.name]


def test_ledger_that_is_not_sound_gives_no_copy(writer: Writing, database_url: str, path: Path, folder: Path) -> None:
    interleaved(writer)
    with plain(database_url) as db:
        db.execute("DROP TRIGGER events_no_update")
    with pytest.raises(FileRefused, match=r"events_no_update.*audit verify"):
        backup(parse_url(database_url), path)
    assert list(folder.iterdir()) == []


def test_damaged_pages_are_found(writer: Writing, database_url: str, path: Path, folder: Path) -> None:
    writer.batch(*(admit(f"r-{i}") for i in range(500)))
    with plain(database_url) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
    with ledger_path(database_url).open("r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(b"\xff" * 16)
    with pytest.raises(FileRefused, match="not sound"):
        backup(parse_url(database_url), path)
    assert list(folder.iterdir()) == []


def test_folder_that_is_not_there_is_an_error_of_the_system(writer: Writing, database_url: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        backup(parse_url(database_url), tmp_path / "nowhere" / "copy.sqlite3")


def test_copy_opens_as_a_ledger_that_goes_on(writer: Writing, database_url: str, path: Path) -> None:
    interleaved(writer)
    backup(parse_url(database_url), path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    copy = Writing(f"sqlite:///{path}", writer.clock)
    assert copy.do(admit("new")).number == 7
    copy.store.close()
    assert audit(f"sqlite:///{path}") == []
