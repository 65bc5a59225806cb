"""What sqlite3 alone does with the ledger's rows: the same events and rollouts, without decider, hashes or threads."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rollbook.ledger.sqlite.engines import WAL_AUTOCHECKPOINT_PAGES

type Row = tuple[Any, ...]
type Batch = tuple[list[Row], list[Row]]

_EVENTS = ("position", "number", "seq", "type", "version", "recorded_at", "payload", "hash")


def submits_per_sec(folder: Path, callers: int, seconds: float) -> float:
    """Write the events of the folder's ledger again, one event a submit and as many a batch as there are callers."""
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as source:
        columns = [row[1] for row in source.execute("PRAGMA table_info(rollouts)")]
        rollouts = {row[0]: row for row in source.execute(f"SELECT {', '.join(columns)} FROM rollouts")}
        events = source.execute(
            f"SELECT {', '.join(_EVENTS)} FROM events WHERE type = 'lease_renewed' ORDER BY position"
        ).fetchall()
    batches = list(_batches(events, rollouts, callers))
    written, spent = 0, 0.0
    while spent < seconds:  # the same rows again, into an empty file, until there is enough to measure
        path = folder / "raw.sqlite3"
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        with closing(_open(path, columns)) as db:
            writer = _Writer(db, columns)
            start = time.perf_counter()
            for batch in batches:
                writer.write(batch)
                written += len(batch[0])
                if spent + time.perf_counter() - start >= seconds:
                    break
            spent += time.perf_counter() - start
    return written / spent


def _batches(events: list[Row], rollouts: dict[int, Row], size: int) -> Iterator[Batch]:
    for start in range(0, len(events) - size + 1, size):
        part = events[start : start + size]
        yield part, [rollouts[number] for number in dict.fromkeys(event[1] for event in part)]


def _open(path: Path, columns: list[str]) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA wal_autocheckpoint={WAL_AUTOCHECKPOINT_PAGES}")
    db.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, number INTEGER NOT NULL, seq INTEGER NOT NULL,"
        " type TEXT NOT NULL, version INTEGER NOT NULL, recorded_at INTEGER NOT NULL, payload TEXT NOT NULL,"
        " hash BLOB NOT NULL, UNIQUE (number, seq))"
    )
    others = ", ".join(columns[1:])
    db.execute(f"CREATE TABLE rollouts ({columns[0]} INTEGER PRIMARY KEY, {others}, UNIQUE (rollout_id))")
    return db


class _Writer:
    """The write-set of a batch."""

    def __init__(self, db: sqlite3.Connection, columns: list[str]) -> None:
        self._db = db
        names = ", ".join(columns)
        self._select = f"SELECT {names} FROM rollouts WHERE number IN (SELECT value FROM json_each(?))"
        self._insert = f"INSERT INTO events ({', '.join(_EVENTS)}) VALUES ({', '.join('?' * len(_EVENTS))})"
        assignments = ", ".join(f"{name} = excluded.{name}" for name in columns[2:])
        self._upsert = (
            f"INSERT INTO rollouts ({names}) VALUES ({', '.join('?' * len(columns))})"
            f" ON CONFLICT (number) DO UPDATE SET {assignments}"
        )

    def write(self, batch: Batch) -> None:
        """One transaction."""
        events, rollouts = batch
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        db.execute(self._select, (json.dumps([row[0] for row in rollouts]),)).fetchall()
        db.executemany(self._insert, events)
        db.executemany(self._upsert, rollouts)
        db.execute("COMMIT")
