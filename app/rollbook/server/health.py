"""Health: counts and beats as they stand in the ledger. A few small reads, whatever the ledger holds."""

from __future__ import annotations

import msgspec

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.vitals import MemberVitals, alive, read_head, read_members
from rollbook_client.messages import RolloutLifecycle


class Concurrency(msgspec.Struct, frozen=True):
    """Sums over the live schedulers: their slots, and the rollouts that wait for one or hold one."""

    max_concurrent: int
    queued: int
    running: int


class MemberHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One live process; ``trouble`` is what one of its loops last failed with."""

    member_id: str
    host: str
    beat_age_sec: float
    accepting: bool
    trouble: str | None


class SchedulerHealth(MemberHealth, frozen=True, kw_only=True):
    """One live scheduler: what it runs, from which queues, in how many slots; ``free`` is null until it has told."""

    entrypoint: str | None
    queues: tuple[str, ...]
    capacity: int
    free: int | None


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
    apis: list[MemberHealth]
    background: list[LoopTrouble]


async def take_health(
    ledger: Ledger, *, queue: str, instance_id: str, process_id: str, accepting: bool, background: list[LoopTrouble]
) -> Health:
    """The deployment's health now, as an API tells it that admits to ``queue``.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    now = ledger.clock()
    members = await read_members(ledger.reader)
    head = await read_head(ledger.reader)
    counts = (await ledger.reader.counts()).values()
    queued = sum(count.queued for count in counts)
    running = sum(count.running for count in counts)
    schedulers = alive(members, "scheduler", now)
    return Health(
        status="ok" if schedulers else "no_scheduler",
        concurrency=Concurrency(
            max_concurrent=sum(member.capacity for member in schedulers),
            queued=queued if schedulers else 0,
            running=running if schedulers else 0,
        ),
        instance_id=instance_id,
        process_id=process_id,
        lifecycle=RolloutLifecycle(
            accepting_rollouts=accepting and head.takes(queue), active_rollouts=queued + running
        ),
        schedulers=[_scheduler(member, now) for member in schedulers],
        apis=[
            MemberHealth(
                member_id=member.member_id,
                host=member.host_name,
                beat_age_sec=member.beat_age_sec(now),
                accepting=bool(member.accepting),
                trouble=member.trouble,
            )
            for member in alive(members, "api", now)
        ],
        background=background,
    )


def _scheduler(member: MemberVitals, now_us: int) -> SchedulerHealth:
    return SchedulerHealth(
        member_id=member.member_id,
        host=member.host_name,
        beat_age_sec=member.beat_age_sec(now_us),
        accepting=bool(member.accepting),
        trouble=member.trouble,
        entrypoint=member.entrypoint,
        queues=member.queues,
        capacity=member.capacity,
        free=member.free,
    )
