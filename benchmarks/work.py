"""Ledgers and commands to measure with: one rollout, its whole life, and very many of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rollbook.ledger.commands import Admit, Claim, Command, EnterPhase, FinishAttempt, Poll, Register, Score
from rollbook.ledger.schema import upgrade
from rollbook.ledger.secrets import token_digest
from rollbook.ledger.sqlite.store import SqliteStore
from rollbook.ledger.urls import parse_url
from rollbook_client.events import StageSpan

QUEUE = "bench"
SCHEDULER = "bench-scheduler"
DIGEST = token_digest("a polling token of the right length for benchmarks")
HOUR_US = 3_600_000_000
REQUEST = (
    b'{"initial_messages":[{"role":"user","content":"17 x 23?"}],"label":"391","metadata":null,"grade":true,'
    b'"agent_timeout_sec":null,"grader_timeout_sec":null,"extra_fields":null}'
)
SAMPLE = (
    b'{"messages":[{"role":"user","content":"17 x 23?"},{"role":"assistant","content":"391"}],"label":"391",'
    b'"reward":1.0,"remove_sample":false,"metrics":{},"extra_fields":{}}'
)
SEALED = bytes(180)


def database_url(folder: Path) -> str:
    """The URL of a ledger in the folder."""
    return f"sqlite:///{folder / 'ledger.sqlite3'}"


def admit(rollout_id: str) -> Admit:
    """Take a rollout in, with a lease of an hour."""
    return Admit(
        rollout_id=rollout_id,
        queue=QUEUE,
        max_queue_depth=None,
        max_attempts=3,
        lease_nonce="00" * 16,
        lease_digest=DIGEST,
        lease_timeout_us=HOUR_US,
        agent_timeout_us=None,
        label="391",
        endpoint_origin="http://127.0.0.1:9",
        endpoint_digest="ab" * 32,
        request=REQUEST,
        sealed=SEALED,
    )


def poll(rollout_id: str) -> Poll:
    """Renew its lease."""
    return Poll(rollout_id, DIGEST)


def register() -> Register:
    """The scheduler that claims here."""
    return Register(
        member_id=SCHEDULER,
        kind="scheduler",
        host="bench",
        pid=1,
        dead_after_us=HOUR_US,
        entrypoint="bench.py",
        queues=(QUEUE,),
        capacity=512,
    )


def claim(limit: int) -> Claim:
    """Start attempts."""
    return Claim(SCHEDULER, (QUEUE,), limit)


def finish(rollout_id: str) -> FinishAttempt:
    """End the first attempt with a reward."""
    return FinishAttempt(
        rollout_id=rollout_id,
        attempt=1,
        scheduler=SCHEDULER,
        status="success",
        phases=("grading",),
        sample=SAMPLE,
        spans=(StageSpan("agent", 1, 2), StageSpan("grading", 2, 3)),
        rewards=(Score("reward", 1.0),),
    )


def life(rollout_ids: list[str]) -> Iterator[list[Command[Any]]]:
    """Batches that lead these rollouts from admission to their end."""
    yield [admit(rollout_id) for rollout_id in rollout_ids]
    yield [poll(rollout_id) for rollout_id in rollout_ids]
    yield [claim(len(rollout_ids))]
    yield [EnterPhase(rollout_id, 1, SCHEDULER, "running") for rollout_id in rollout_ids]
    yield [finish(rollout_id) for rollout_id in rollout_ids]


def fill(folder: Path, rollouts: int) -> str:
    """A ledger with so many finished rollouts, written as the writer writes them; its URL."""
    url = parse_url(database_url(folder))
    upgrade(url)
    store = SqliteStore(url)
    try:
        store.run([register()])
        for start in range(0, rollouts, 500):
            ids = [f"{number:032x}" for number in range(start, min(start + 500, rollouts))]
            for batch in life(ids):
                store.run(batch)
    finally:
        store.close()
    return database_url(folder)


def multiply(path: Path, times: int) -> None:
    """Copy a ledger's finished rollouts ``times`` times, by SQL: new numbers, ids and positions, the same histories.

    The copies' hashes do not chain; nothing that a server does with finished rollouts looks at them. Tables are read
    in the order of their keys (`NOT INDEXED`): events may only be added at the end.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        position, number, events = db.execute("SELECT position, number, events FROM ledger_head").fetchone()
        for table in _tables(db):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(_copied(column, position=position, number=number) for column in columns)
            db.execute("BEGIN")
            db.execute(
                f"WITH RECURSIVE copy(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copy WHERE k < {times})"
                f" INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {values} FROM copy CROSS JOIN {table} old NOT INDEXED WHERE old.number <= {number}"
            )
            db.execute("COMMIT")
        db.execute(
            "UPDATE ledger_head SET position = ?, number = ?, events = ?",
            (position * (times + 1), number * (times + 1), events * (times + 1)),
        )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _tables(db: sqlite3.Connection) -> list[str]:
    """The tables whose rows belong to a rollout."""
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return [
        name
        for name in names
        if any(row[1] == "number" for row in db.execute(f"PRAGMA table_info({name})"))
        and name not in ("ledger_head", "secrets")
    ]


def _copied(column: str, *, position: int, number: int) -> str:
    """A column of a copy, as SQL over the old row and the copy's ordinal k."""
    if column == "number":
        return f"old.number + k * {number}"
    if column == "rollout_id":
        return "lower(hex(randomblob(16)))"
    if column in ("position", "request_position", "result_position"):
        return f"old.{column} + k * {position}"
    return f"old.{column}"
