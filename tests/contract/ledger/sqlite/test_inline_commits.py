"""Commits on the event loop wait for nobody: where others have their turn, the writer's thread takes over."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.ledger.batch import Committed
from rollbook.ledger.commands import Command
from rollbook.ledger.sqlite.committer import INLINE_BATCH, INLINE_LIMIT_SEC, Pace, StoreCommitter
from rollbook.ledger.sqlite.engines import database_path, lock_path
from rollbook.ledger.sqlite.locks import FileLock
from rollbook.ledger.sqlite.store import SqliteStore
from rollbook.ledger.writer import GroupCommitWriter
from tests.support.ledger import admit


@pytest.fixture
def store(migrated_url: sa.URL) -> Iterator[SqliteStore]:
    opened = SqliteStore(migrated_url, lock_limit_sec=30.0)
    yield opened
    opened.close()


def test_nobody_is_waited_for_where_nobody_writes(store: SqliteStore) -> None:
    done = store.run_now([admit("r-1")])
    assert done is not None
    assert done.answers[0].rollout_id == "r-1"
    assert done.last_position == 1


def test_another_turn_is_left_to_the_thread_and_nothing_is_written(store: SqliteStore, migrated_url: sa.URL) -> None:
    lock = FileLock(lock_path(migrated_url))
    lock.acquire(0.0)
    assert store.run_now([admit("r-1")]) is None
    lock.close()
    assert store.run([admit("r-1")]).last_position == 1


def test_a_foreign_writer_is_left_to_the_thread(store: SqliteStore, migrated_url: sa.URL) -> None:
    with closing(sqlite3.connect(database_path(migrated_url), isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        assert store.run_now([admit("r-1")]) is None
        foreign.execute("ROLLBACK")
    assert store.run([admit("r-1")]).last_position == 1


def test_only_small_batches_are_written_on_the_loop_and_only_while_commits_are_quick() -> None:
    pace = Pace()
    assert pace.allows(INLINE_BATCH)
    assert not pace.allows(INLINE_BATCH + 1)
    for _ in range(20):
        pace.note(INLINE_LIMIT_SEC * 2, 1)
    assert not pace.allows(1)
    for _ in range(20):
        pace.note(INLINE_LIMIT_SEC / 10, 1)
    assert pace.allows(1)


class NotingStore:
    """Notes which thread carries a batch out."""

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        self.threads: list[threading.Thread] = []

    def run(self, commands: list[Command[Any]]) -> Committed:
        self.threads.append(threading.current_thread())
        return Committed([None] * len(commands), 0, 0, {})

    def run_now(self, commands: list[Command[Any]]) -> Committed | None:
        return None if self.busy else self.run(commands)

    def guard_leases(self, silence_us: int) -> None:
        return None

    def stop_guarding(self) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.mark.parametrize("busy", [False, True])
async def test_the_loop_writes_unless_others_have_their_turn(busy: bool) -> None:
    store = NotingStore(busy=busy)
    writer = GroupCommitWriter(StoreCommitter(store), lambda committed: None)
    writer.start()
    async with asyncio.timeout(10):
        await asyncio.gather(*(writer.submit(admit(f"r-{number}")) for number in range(3)))
        await writer.close()
    (thread,) = store.threads
    assert (thread is threading.main_thread()) is not busy
