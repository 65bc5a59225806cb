"""Who is alive: API and scheduler processes, their beats and queues. SQL within the writer's transaction.

Members are facts of now, not events: a beat is no part of any rollout's history.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollbook_projections import column_text

from .commands import Beat, Leave, Register
from .refusals import QueueTaken, SchedulerGone
from .statements import Dialect, Steps

FORGOTTEN_AFTER_US = 24 * 3600 * 1_000_000
"""Members that stopped so long ago are removed when another one registers, and APIs that were silent for so long:
nobody declares an API dead."""

_OTHERS = "SELECT member_id FROM members WHERE kind = ? AND member_id <> ? AND stopped_at IS NULL AND beat_at > ?"
_GONE = "UPDATE members SET stopped_at = ?, trouble = 'its process is gone' WHERE member_id = ? AND stopped_at IS NULL"
_QUEUE_HOLDER = """
    SELECT m.entrypoint FROM members m JOIN member_queues q ON q.member_id = m.member_id
    WHERE q.queue = ? AND m.kind = 'scheduler' AND m.stopped_at IS NULL AND m.beat_at > ?
      AND m.entrypoint <> ? AND m.member_id <> ?
"""
_FORGET_QUEUES = "DELETE FROM member_queues WHERE member_id IN (SELECT member_id FROM members WHERE stopped_at < ?)"
_FORGET = "DELETE FROM members WHERE stopped_at < ? OR (kind = 'api' AND beat_at < ?)"
_ENTER = (
    "INSERT INTO members (member_id, kind, host, pid, entrypoint, capacity, started_at, beat_at, accepting)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (member_id) DO UPDATE SET beat_at = excluded.beat_at,"
    " stopped_at = NULL, capacity = excluded.capacity, accepting = 1"
)
_SERVE = "INSERT INTO member_queues (member_id, queue) VALUES (?, ?) ON CONFLICT DO NOTHING"
_BEAT = (
    "UPDATE members SET beat_at = ?, accepting = ?, capacity = ?, free = ?, trouble = ?"
    " WHERE member_id = ? AND stopped_at IS NULL RETURNING 1"
)
_LEAVE = "UPDATE members SET stopped_at = ? WHERE member_id = ?"
_ABLE = (
    "SELECT m.member_id, m.capacity FROM members m WHERE m.stopped_at IS NULL AND (m.member_id = ? OR"
    " (m.kind = 'scheduler' AND m.accepting = 1 AND EXISTS"
    " (SELECT 1 FROM member_queues q WHERE q.member_id = m.member_id AND {of_these_queues})))"
)
_BURY = (
    "UPDATE members SET stopped_at = ?, trouble = 'declared dead: no beat'"
    " WHERE kind = 'scheduler' AND stopped_at IS NULL AND beat_at <= ? AND member_id <> ?"
)


_DISPLACE = f"{_BURY} AND entrypoint <> ? AND EXISTS" + (
    " (SELECT 1 FROM member_queues q WHERE q.member_id = members.member_id AND {of_these_queues})"
)


def others_alive(command: Register, now: int) -> Steps[bool]:
    """Whether another member of the same kind has a fresh beat and is not known to be dead."""
    rows = yield _OTHERS, (command.kind, command.member_id, now - command.dead_after_us)
    return any(member_id not in command.known_dead for (member_id,) in rows)


def register(command: Register, now: int) -> Steps[None]:
    """Write the member down.

    Raises:
        QueueTaken: a live scheduler serves one of the queues with another entrypoint.
    """
    for member_id in command.known_dead:
        yield _GONE, (now, member_id)
    stale = now - command.dead_after_us
    for queue in command.queues:
        rows = yield _QUEUE_HOLDER, (queue, stale, command.entrypoint or "", command.member_id)
        if rows:
            raise QueueTaken(queue, rows[0][0])
    old = now - FORGOTTEN_AFTER_US
    yield _FORGET_QUEUES, (old,)
    yield _FORGET, (old, old)
    yield (
        _ENTER,
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
    for queue in command.queues:
        yield _SERVE, (command.member_id, queue)


def beat(command: Beat, now: int) -> Steps[None]:
    """Note a sign of life.

    Raises:
        SchedulerGone: the member was declared dead or never registered.
    """
    done = yield (
        _BEAT,
        (
            now,
            int(command.accepting),
            command.capacity,
            command.free,
            column_text(command.trouble),
            command.member_id,
        ),
    )
    if not done:
        raise SchedulerGone(command.member_id)


def leave(command: Leave, now: int) -> Steps[None]:
    """Note an end on purpose."""
    yield _LEAVE, (now, command.member_id)


def slots_of_able(member_id: str, dialect: Dialect, *, queues: Sequence[str]) -> Steps[dict[str, int]]:
    """The slots of this scheduler, which must be registered to claim, and of all others that claim from these queues.

    Raises:
        SchedulerGone: it was declared dead or never registered.
    """
    condition, parameters = dialect.is_any("q.queue", queues)
    rows = yield _ABLE.format(of_these_queues=condition), (member_id, *parameters)
    slots: dict[str, int] = dict(rows)
    if member_id not in slots:
        raise SchedulerGone(member_id)
    return slots


def bury_dead_schedulers(dead_after_us: int, now: int, *, except_for: str | None = None) -> Steps[None]:
    """Declare every other scheduler dead whose beat, as it stands now under the lock, is stale."""
    yield _BURY, (now, now - dead_after_us, except_for or "")


def bury_displaced_schedulers(command: Register, now: int, dialect: Dialect) -> Steps[None]:
    """Declare those dead that served one of the queues with another entrypoint, and whose silence frees it.

    They must not come back to it. All others that are silent may beat yet: perhaps the database was away.
    """
    condition, parameters = dialect.is_any("q.queue", command.queues)
    entrypoint = command.entrypoint or ""
    yield (
        _DISPLACE.format(of_these_queues=condition),
        (now, now - command.dead_after_us, command.member_id, entrypoint, *parameters),
    )
