"""Health: counts and beats as they stand in the ledger. A few small reads, whatever the ledger holds."""

from __future__ import annotations

import msgspec

from rollbook.ledger.ledger import Ledger
from rollbook_client.messages import RolloutLifecycle

DEAD_AFTER_US = 15_000_000
"""A member without a beat for so long does not count as alive."""


class Concurrency(msgspec.Struct, frozen=True):
    """Sums over the live schedulers: their slots, and the rollouts that wait for one or hold one."""

    max_concurrent: int
    queued: int
    running: int


class SchedulerHealth(msgspec.Struct, frozen=True):
    """One live scheduler; ``trouble`` is what one of its loops last failed with."""

    member_id: str
    entrypoint: str | None
    beat_age_sec: float
    capacity: int
    accepting: bool
    trouble: str | None


class LoopTrouble(msgspec.Struct, frozen=True):
    """A background loop of the answering process that fails at present, and with what."""

    loop: str
    trouble: str


class Health(msgspec.Struct, frozen=True):
    """Body of `GET /health`. ``status`` is `ok`, or `no_scheduler` where none is alive to claim rollouts."""

    status: str
    concurrency: Concurrency
    instance_id: str
    process_id: str
    lifecycle: RolloutLifecycle
    schedulers: list[SchedulerHealth]
    background: list[LoopTrouble]


async def take_health(
    ledger: Ledger, *, instance_id: str, process_id: str, accepting: bool, background: list[LoopTrouble]
) -> Health:
    """The deployment's health now.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    now = ledger.clock()
    alive = await ledger.reader.members("scheduler", now - DEAD_AFTER_US)
    counts = (await ledger.reader.counts()).values()
    queued = sum(count.queued for count in counts)
    running = sum(count.running for count in counts)
    schedulers = [
        SchedulerHealth(
            member_id=member.member_id,
            entrypoint=member.entrypoint,
            beat_age_sec=max(0, now - member.beat_at) / 1_000_000,
            capacity=member.capacity,
            accepting=bool(member.accepting),
            trouble=member.trouble,
        )
        for member in alive
    ]
    return Health(
        status="ok" if alive else "no_scheduler",
        concurrency=Concurrency(
            max_concurrent=sum(member.capacity for member in alive),
            queued=queued if alive else 0,
            running=running if alive else 0,
        ),
        instance_id=instance_id,
        process_id=process_id,
        lifecycle=RolloutLifecycle(accepting_rollouts=accepting, active_rollouts=queued + running),
        schedulers=schedulers,
        background=background,
    )
