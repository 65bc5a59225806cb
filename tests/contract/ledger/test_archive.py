"""Archives: what is over goes to a file with its hashes; the ledger keeps what stands for it; both can be checked."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.archives import moving
from rollbook.ledger.archives.checking import check_file, check_file_of
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.files import FileRefused, sole_writer
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import RolloutKnown
from rollbook.ledger.replay import replay
from rollbook.ledger.schema import downgrade
from rollbook.ledger.urls import parse_url
from tests.contract.ledger.archives import OVER, assert_complete, assert_sound, events, filed, fill
from tests.support.databases import NewLedger
from tests.support.ledger import Writing, admit, api, cancel, close, poll, writing
from tests.support.sql import rows
from tests.support.tampering import alter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.jsonl.gz"


@pytest.fixture
def before_at(writer: Writing) -> int:
    return fill(writer)


def test_what_is_over_is_in_the_file_and_the_rest_in_the_ledger(database_url: str, before_at: int, path: Path) -> None:
    before, totals = events(database_url), replay(database_url)
    moved = archive(database_url, before_at=before_at, to=path)
    assert_complete(database_url, path, before)
    assert (moved.rollouts, moved.events) == (OVER, len(filed(path)))
    assert moved.size_bytes == path.stat().st_size
    after = replay(database_url)
    assert (after.head, after.statuses, after.archived) == (totals.head, totals.statuses, OVER)
    assert not path.with_name(f"{path.name}.unfinished").exists()


def test_file_is_json_lines_that_anybody_can_read(database_url: str, before_at: int, path: Path) -> None:
    archive(database_url, before_at=before_at, to=path)
    head, *lines, tail = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert '"rollbook archive 1"' in head
    assert f'"rollouts":{OVER}' in tail
    assert len(lines) == len(filed(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_history_tables_stay_for_sql(database_url: str, before_at: int, path: Path) -> None:
    text = "SELECT rollout_id, r.status, s.value FROM rollouts r JOIN scores s ON s.number = r.number ORDER BY r.number"
    scores = rows(database_url, text)
    archive(database_url, before_at=before_at, to=path)
    assert rows(database_url, text) == scores
    assert len(scores) == OVER // 2


def test_only_what_ended_before_and_has_no_open_attempt_is_moved(
    writer: Writing, database_url: str, path: Path
) -> None:
    fill(writer)
    limit = writer.clock.now
    writer.do(cancel("waits"))
    writer.do(api())
    writer.clock.forward(121)
    writer.do(cmd.Beat("a-1"))
    writer.do(cmd.ExpireLeases())
    state = "SELECT status, scheduler FROM rollouts WHERE rollout_id = 'runs'"
    assert rows(database_url, state) == [("failure", "s-1")]
    assert archive(database_url, before_at=limit, to=path).rollouts == OVER
    now = writer.clock.now + 1
    assert archive(database_url, before_at=now, to=path.with_name("2.jsonl.gz")).rollouts == 2
    assert_sound(database_url)
    writer.do(close("runs", outcome="cancelled"))
    assert archive(database_url, before_at=now, to=path.with_name("3.jsonl.gz")).rollouts == 1
    assert_sound(database_url)


def test_where_nothing_is_due_no_file_is_made(writer: Writing, database_url: str, path: Path) -> None:
    before_at = fill(writer)
    assert archive(database_url, before_at=before_at - 61_000_000, to=path).archive_id is None
    assert list(path.parent.glob("archive*")) == []


def test_repeated_command_has_nothing_to_do(database_url: str, before_at: int, path: Path) -> None:
    archive(database_url, before_at=before_at, to=path)
    content = path.read_bytes()
    assert archive(database_url, before_at=before_at, to=path).archive_id is None
    assert path.read_bytes() == content


def test_file_of_a_complete_archive_takes_no_more(
    writer: Writing, database_url: str, before_at: int, path: Path
) -> None:
    archive(database_url, before_at=before_at, to=path)
    writer.do(cancel("waits"))
    with pytest.raises(FileRefused, match="name another file"):
        archive(database_url, before_at=before_at + 1, to=path)


@pytest.mark.parametrize(
    "content",
    # Named, and without the time in them: all workers of a run must find the same tests.
    [b"", b"notes", gzip.compress(b"notes", mtime=0), gzip.compress(b'{"format": 5}\n', mtime=0)],
    ids=["empty", "no gzip", "no JSON", "another format"],
)
def test_file_that_is_no_archive_is_left_alone(database_url: str, before_at: int, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    before = events(database_url)
    with pytest.raises(FileRefused, match="left as it is, name another file"):
        archive(database_url, before_at=before_at, to=path)
    assert path.read_bytes() == content
    assert events(database_url) == before


def test_archive_of_another_ledger_is_refused(
    database: str, new_ledger: NewLedger, database_url: str, before_at: int, path: Path, tmp_path: Path
) -> None:
    archive(database_url, before_at=before_at, to=path)
    other = tmp_path / "other"
    other.mkdir()
    with new_ledger(database, other) as url, writing(url) as there:
        there.batch(*(admit(f"r-{i}") for i in range(OVER)))
        with pytest.raises(FileRefused, match="not in this ledger"):
            archive(url, before_at=before_at, to=path)
        assert len(events(url)) == OVER
        assert rows(url, "SELECT count(*) FROM archives") == [(0,)]


def test_file_that_another_process_writes_is_refused(database_url: str, before_at: int, path: Path) -> None:
    with sole_writer(path), pytest.raises(FileRefused, match="another process writes"):
        archive(database_url, before_at=before_at, to=path)
    archive(database_url, before_at=before_at, to=path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = replace(payload, '1e2', '1e3') WHERE number = 7 AND seq = 1",
        "DELETE FROM events WHERE number = 7 AND seq = 2",
        "DELETE FROM events WHERE number = 20",
        "UPDATE rollouts SET seq = seq + 1 WHERE number = 7",
    ],
)
def test_damaged_rollout_is_not_archived_and_nothing_else(
    database_url: str, before_at: int, path: Path, statement: str
) -> None:
    alter(database_url, statement)
    before = events(database_url)
    with pytest.raises(FileRefused, match="audit verify"):
        archive(database_url, before_at=before_at, to=path)
    assert events(database_url) == before
    assert list(path.parent.glob("archive*")) == []


async def test_writers_go_on_meanwhile(ledger: Ledger, database_url: str, path: Path) -> None:
    names = [f"r-{i}" for i in range(600)]
    await asyncio.gather(*(ledger.submit(admit(name)) for name in names))
    await ledger.submit(cancel(*names))
    await ledger.submit(admit("lives"))
    moving = asyncio.ensure_future(asyncio.to_thread(archive, database_url, before_at=2**62, to=path))
    polls = 0
    while not moving.done():
        await ledger.submit(poll("lives"))
        polls += 1
    assert (await moving).rollouts == 600
    assert polls > 1
    assert await asyncio.to_thread(rows, database_url, "SELECT count(*) FROM events") == [(1 + polls,)]
    await asyncio.to_thread(assert_sound, database_url)


async def test_ledger_is_sound_at_every_moment_of_it(
    writer: Writing, database_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PORTION_EVENTS", 1)
    before_at = fill(writer)
    before = events(database_url)
    moving_it = asyncio.ensure_future(asyncio.to_thread(archive, database_url, before_at=before_at, to=path))
    while not moving_it.done():
        await asyncio.to_thread(assert_sound, database_url)
    await moving_it
    assert_complete(database_url, path, before)


async def test_two_archives_at_once_share_nothing(
    writer: Writing, database_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PORTION_EVENTS", 10)
    before_at = fill(writer)
    paths = [path, path.with_name("other.jsonl.gz"), path.with_name("third.jsonl.gz")]
    ended = await asyncio.gather(
        *(asyncio.to_thread(archive, database_url, before_at=before_at, to=one) for one in paths),
        return_exceptions=True,
    )
    assert {type(one) for one in ended} <= {moving.Moved, FileRefused}
    assert moving.Moved in {type(one) for one in ended}
    # By the ledger, not by the answers: one that is refused after a few portions has moved those.
    assert rows(database_url, "SELECT count(*), sum(archiving) FROM archived_rollouts") == [(OVER, 0)]
    assert_sound(database_url)


async def test_archived_id_stays_taken(ledger: Ledger, database_url: str, path: Path) -> None:
    await ledger.submit(admit("r-1"))
    await ledger.submit(cancel("r-1"))
    await asyncio.to_thread(archive, database_url, before_at=2**62, to=path)
    with pytest.raises(RolloutKnown):
        await ledger.submit(admit("r-1"))
    assert await ledger.submit(cancel("r-1")) == {"r-1": "not_found"}


def test_positions_go_on_behind_what_is_archived(writer: Writing, database_url: str, path: Path) -> None:
    writer.batch(admit("r-1"), cancel("r-1"))
    last = rows(database_url, "SELECT max(position) FROM events")[0][0]
    archive(database_url, before_at=2**62, to=path)
    assert events(database_url) == {}
    assert_sound(database_url)
    writer.do(admit("r-2"))
    assert rows(database_url, "SELECT min(position), min(number) FROM events") == [(last + 1, 2)]
    assert_sound(database_url)


def test_one_long_history_is_moved_whole(writer: Writing, database_url: str, path: Path) -> None:
    writer.do(admit("r-1"))
    for _ in range(30):
        writer.batch(*(poll("r-1") for _ in range(40)))
    writer.do(cancel("r-1"))
    before = events(database_url)
    archive(database_url, before_at=2**62, to=path)
    assert filed(path) == before
    assert events(database_url) == {}
    assert_sound(database_url)


def test_older_schema_that_knows_no_archives_is_refused(database_url: str, before_at: int, path: Path) -> None:
    archive(database_url, before_at=before_at, to=path)
    with pytest.raises(RuntimeError, match="20 rollouts are archived"):
        downgrade(parse_url(database_url), "0003")
    assert_sound(database_url)


CHANGES = {
    "payload": (b'"attempt":1', b'"attempt":2'),
    "hash": (b'"hash":"0', b'"hash":"1'),
    "a whole line": (b'{"position":1,', b'{"position":0,'),
    "the sum": (f'"rollouts":{OVER}'.encode(), b'"rollouts":19'),
    "the head": (b"rollbook archive 1", b"rollbook archive 2"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_file_is_found(database_url: str, before_at: int, path: Path, what: str) -> None:
    archive(database_url, before_at=before_at, to=path)
    text = gzip.decompress(path.read_bytes())
    changed = text.replace(*CHANGES[what], 1)
    assert changed != text
    path.write_bytes(gzip.compress(changed))
    assert check_file(path).findings != []
    assert check_file_of(database_url, path).findings != []


def test_file_that_lost_a_rollout_or_its_end_is_found(database_url: str, before_at: int, path: Path) -> None:
    archive(database_url, before_at=before_at, to=path)
    whole = path.read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    for left in (
        [line for line in lines if b'"number":3,' not in line],
        lines[:-1],
        [*lines, lines[-1]],
        [lines[0], lines[-1]],
    ):
        path.write_bytes(gzip.compress(b"".join(left)))
        assert check_file(path).findings != []
    path.write_bytes(whole[:-20])
    assert check_file(path).findings != []
    path.write_bytes(whole)
    assert check_file(path).findings == []


def test_another_compression_of_the_same_events_is_not_the_archives_file(
    database_url: str, before_at: int, path: Path
) -> None:
    archive(database_url, before_at=before_at, to=path)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1))
    assert check_file(path).findings == []
    assert "byte for byte" in check_file_of(database_url, path).findings[0]
