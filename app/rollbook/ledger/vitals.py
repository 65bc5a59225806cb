"""How the deployment is, as its ledger knows it: queues, members, closed admission. Cheap, whatever it holds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook_projections import tables

from .commands import MemberKind
from .reader import Reader

DEAD_AFTER_US = 15_000_000
"""A member without a beat for so long does not count as alive."""
NEXT_IN_LINE = 64
"""Of how many rollouts that are next in a queue the oldest is told: one that came back waits since then, not since its
admission, and so the first in line need not be the oldest."""

QUEUES = f"""
    SELECT c.queue, c.queued, c.running,
           (SELECT min(n.queued_at) FROM (SELECT queued_at FROM rollouts WHERE {tables.CLAIMABLE} AND queue = c.queue
                                          ORDER BY number LIMIT {NEXT_IN_LINE}) n)
    FROM queue_counts c ORDER BY c.queue
"""
_MEMBERS = """
    SELECT m.member_id, m.kind, m.host, m.pid, m.entrypoint, m.capacity, m.free, m.started_at, m.beat_at, m.accepting,
           m.trouble, q.queue
    FROM members m LEFT JOIN member_queues q ON q.member_id = m.member_id
    WHERE m.stopped_at IS NULL ORDER BY m.started_at, m.member_id, q.queue
"""
_HEAD = "SELECT position, events, draining FROM ledger_head WHERE id = 1"
_CLOSED = "SELECT queue FROM drains WHERE opened_at IS NULL ORDER BY queue"


class QueueVitals(msgspec.Struct, frozen=True):
    """A queue that rollouts were admitted to: how many wait and run, and since when the oldest waits."""

    queue: str
    queued: int
    running: int
    oldest_queued_at: int | None


class MemberVitals(msgspec.Struct, frozen=True):
    """A registered process that did not leave and was not declared dead; ``host`` is as `liveness.host_name` has it."""

    member_id: str
    kind: str
    host: str
    pid: int
    entrypoint: str | None
    capacity: int
    free: int | None
    started_at: int
    beat_at: int
    accepting: int
    trouble: str | None
    queues: tuple[str, ...] = ()

    @property
    def host_name(self) -> str:
        """The machine's own name."""
        return self.host.partition(" ")[0]

    def beat_age_sec(self, now_us: int) -> float:
        """How long ago its last beat was."""
        return max(0, now_us - self.beat_at) / 1_000_000

    def alive(self, now_us: int) -> bool:
        """Whether its last beat is fresh."""
        return self.beat_at >= now_us - DEAD_AFTER_US


class HeadVitals(msgspec.Struct, frozen=True):
    """The ledger's end, its number of events, and the queues whose admission is closed ('' stands for all)."""

    position: int
    events: int
    closed_queues: tuple[str, ...]

    def takes(self, queue: str) -> bool:
        """Whether rollouts are admitted to a queue."""
        return "" not in self.closed_queues and queue not in self.closed_queues


async def read_queues(reader: Reader) -> list[QueueVitals]:
    """All queues.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    return [QueueVitals(*row) for row in await reader.query(QUEUES)]


async def read_members(reader: Reader) -> list[MemberVitals]:
    """All members that count as there, the dead ones among them that nobody has declared dead yet.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    found: dict[str, MemberVitals] = {}
    for *row, queue in await reader.query(_MEMBERS):
        member = found.get(row[0]) or MemberVitals(*row)
        queues = member.queues if queue is None else (*member.queues, queue)
        found[row[0]] = msgspec.structs.replace(member, queues=queues)
    return list(found.values())


async def read_head(reader: Reader) -> HeadVitals:
    """The ledger's end, and where admission is closed.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    ((position, events, draining),) = await reader.query(_HEAD)
    closed: Sequence[tuple[str]] = await reader.query(_CLOSED) if draining else ()
    return HeadVitals(position, events, tuple(queue for (queue,) in closed))


def alive(members: Sequence[MemberVitals], kind: MemberKind, now_us: int) -> list[MemberVitals]:
    """The members of a kind whose beats are fresh."""
    return [member for member in members if member.kind == kind and member.alive(now_us)]
