"""Who is alive: API and scheduler processes, their beats and queues. SQL on the writer's connection.

Members are facts of now, not events: a beat is no part of any rollout's history.
"""

from __future__ import annotations

import sqlite3

from .commands import Beat, Leave, Register
from .refusals import QueueTaken, SchedulerGone

FORGOTTEN_AFTER_US = 24 * 3600 * 1_000_000
"""Members that stopped so long ago are removed when another one registers, and APIs that were silent for so long:
nobody declares an API dead."""

_QUEUE_HOLDER = """
    SELECT m.entrypoint FROM members m JOIN member_queues q ON q.member_id = m.member_id
    WHERE q.queue = ? AND m.kind = 'scheduler' AND m.stopped_at IS NULL AND m.beat_at > ?
      AND m.entrypoint <> ? AND m.member_id <> ?
"""


def others_alive(db: sqlite3.Connection, command: Register, now: int) -> bool:
    """Whether another member of the same kind has a fresh beat and is not known to be dead."""
    rows = db.execute(
        "SELECT member_id FROM members WHERE kind = ? AND member_id <> ? AND stopped_at IS NULL AND beat_at > ?",
        (command.kind, command.member_id, now - command.dead_after_us),
    )
    return any(member_id not in command.known_dead for (member_id,) in rows)


def register(db: sqlite3.Connection, command: Register, now: int) -> None:
    """Write the member down.

    Raises:
        QueueTaken: a live scheduler serves one of the queues with another entrypoint.
    """
    db.executemany(
        "UPDATE members SET stopped_at = ?, trouble = 'its process is gone' WHERE member_id = ? AND stopped_at IS NULL",
        [(now, member_id) for member_id in command.known_dead],
    )
    for queue in command.queues:
        stale = now - command.dead_after_us
        rows = db.execute(_QUEUE_HOLDER, (queue, stale, command.entrypoint or "", command.member_id)).fetchall()
        if rows:
            raise QueueTaken(queue, rows[0][0])
    old = now - FORGOTTEN_AFTER_US
    db.execute(
        "DELETE FROM member_queues WHERE member_id IN (SELECT member_id FROM members WHERE stopped_at < ?)", (old,)
    )
    db.execute("DELETE FROM members WHERE stopped_at < ? OR (kind = 'api' AND beat_at < ?)", (old, old))
    db.execute(
        "INSERT INTO members (member_id, kind, host, pid, entrypoint, capacity, started_at, beat_at, accepting)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (member_id) DO UPDATE SET beat_at = excluded.beat_at,"
        " stopped_at = NULL, capacity = excluded.capacity, accepting = 1",
        (
            command.member_id,
            command.kind,
            command.host,
            command.pid,
            command.entrypoint,
            command.capacity,
            now,
            now,
        ),
    )
    db.executemany(
        "INSERT INTO member_queues (member_id, queue) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(command.member_id, queue) for queue in command.queues],
    )


def beat(db: sqlite3.Connection, command: Beat, now: int) -> None:
    """Note a sign of life.

    Raises:
        SchedulerGone: the member was declared dead or never registered.
    """
    done = db.execute(
        "UPDATE members SET beat_at = ?, accepting = ?, capacity = ?, trouble = ?"
        " WHERE member_id = ? AND stopped_at IS NULL",
        (now, int(command.accepting), command.capacity, command.trouble, command.member_id),
    )
    if done.rowcount == 0:
        raise SchedulerGone(command.member_id)


def leave(db: sqlite3.Connection, command: Leave, now: int) -> None:
    """Note an end on purpose."""
    db.execute("UPDATE members SET stopped_at = ? WHERE member_id = ?", (now, command.member_id))


def check_alive(db: sqlite3.Connection, member_id: str) -> None:
    """Only a registered scheduler may claim.

    Raises:
        SchedulerGone: it was declared dead or never registered.
    """
    row = db.execute("SELECT 1 FROM members WHERE member_id = ? AND stopped_at IS NULL", (member_id,)).fetchone()
    if row is None:
        raise SchedulerGone(member_id)


def bury_dead_schedulers(
    db: sqlite3.Connection, dead_after_us: int, now: int, *, except_for: str | None = None
) -> None:
    """Declare every other scheduler dead whose beat, as it stands now under the lock, is stale."""
    db.execute(
        "UPDATE members SET stopped_at = ?, trouble = 'declared dead: no beat'"
        " WHERE kind = 'scheduler' AND stopped_at IS NULL AND beat_at <= ? AND member_id IS NOT ?",
        (now, now - dead_after_us, except_for),
    )
