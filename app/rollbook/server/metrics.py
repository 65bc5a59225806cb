"""`GET /metrics`: the ledger's state and what this process measures, in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerUnavailable
from rollbook.ledger.vitals import MemberVitals, QueueVitals, alive, read_head, read_members, read_queues
from rollbook.metrics.families import (
    Gathered,
    counter,
    gauge,
    histogram,
    loop_lag_metric,
    process_metrics,
    writer_metrics,
)
from rollbook_client.events import (
    AttemptEnded,
    AttemptOutcome,
    AttemptStarted,
    CancellationRequested,
    LeaseExpired,
    RolloutAdmitted,
    RolloutFinished,
)

from .meters import ProcessMeters

MEDIA_TYPE = "text/plain; version=0.0.4"
PREFIX = "rollbook_api"
_QUEUE, _OUTCOME, _CATEGORY = 1, 2, 3
_FINAL = ("success", "failure", "cancelled")


async def metrics_text(ledger: Ledger | None, meters: ProcessMeters, *, queue: str) -> bytes:
    """All metrics now, of an API that admits to ``queue``.

    While the ledger cannot be read, those of this process alone, and that it cannot.
    """
    families: list[Metric] = []
    try:
        if ledger is not None:
            families += await _of_the_ledger(ledger, meters, queue)
    except LedgerUnavailable:
        families.clear()
    text = "Whether the ledger could be read for this answer."
    reachable = gauge("rollbook_ledger_reachable", text, float(bool(families)))
    own = [] if ledger is None else _of_this_process(ledger, meters)
    return generate_latest(Gathered([reachable, *families, *own, *process_metrics()]))


async def _of_the_ledger(ledger: Ledger, meters: ProcessMeters, own_queue: str) -> list[Metric]:
    """The same whichever process is asked, but for the zero that its counts began at."""
    await meters.count()
    now = ledger.clock()
    head = await read_head(ledger.reader)
    members = await read_members(ledger.reader)
    queues = await read_queues(ledger.reader)
    if own_queue not in {queue.queue for queue in queues}:
        queues.append(QueueVitals(own_queue, 0, 0, None))  # nothing was admitted to it yet
    lag = max(head.position - ledger.feed.position, 0)
    closed = GaugeMetricFamily(
        "rollbook_admission_closed",
        "1 for a queue whose admission is closed; queue '' stands for all.",
        labels=["queue"],
    )
    for queue in head.closed_queues:
        closed.add_metric((queue,), 1)
    return [
        *_queues(queues, now),
        *_members(members, now),
        *_happenings(meters, [queue.queue for queue in queues]),
        closed,
        counter("rollbook_ledger_events", "Events in the ledger, ever.", head.events),
        gauge(f"{PREFIX}_feed_lag_positions", "Positions that waiters of this process were not told.", lag),
    ]


def _queues(queues: Sequence[QueueVitals], now_us: int) -> list[Metric]:
    queued = GaugeMetricFamily("rollbook_queued_rollouts", "Rollouts that wait for a slot.", labels=["queue"])
    running = GaugeMetricFamily("rollbook_running_rollouts", "Rollouts that hold a slot.", labels=["queue"])
    age = GaugeMetricFamily(
        "rollbook_oldest_queued_seconds",
        "How long the oldest of the rollouts that are next has waited; 0 where none waits.",
        labels=["queue"],
    )
    for queue in queues:
        labels = (queue.queue,)
        queued.add_metric(labels, queue.queued)
        running.add_metric(labels, queue.running)
        since = queue.oldest_queued_at
        age.add_metric(labels, 0.0 if since is None else max(now_us - since, 0) / 1_000_000)
    return [queued, running, age]


def _members(members: Sequence[MemberVitals], now_us: int) -> list[Metric]:
    schedulers, apis = alive(members, "scheduler", now_us), alive(members, "api", now_us)
    names = ["scheduler", "host"]
    capacity = GaugeMetricFamily("rollbook_scheduler_slots", "Slots of a live scheduler.", labels=names)
    free = GaugeMetricFamily("rollbook_scheduler_free_slots", "Slots it could fill, as last told.", labels=names)
    accepting = GaugeMetricFamily("rollbook_scheduler_accepting", "Whether it claims rollouts.", labels=names)
    age = GaugeMetricFamily("rollbook_scheduler_beat_age_seconds", "How long ago its last beat was.", labels=names)
    for member in schedulers:
        labels = (member.member_id, member.host_name)
        capacity.add_metric(labels, member.capacity)
        if member.free is not None:
            free.add_metric(labels, member.free)
        accepting.add_metric(labels, float(member.accepting))
        age.add_metric(labels, member.beat_age_sec(now_us))
    return [
        gauge("rollbook_schedulers", "Live schedulers.", len(schedulers)),
        gauge("rollbook_apis", "Live API processes.", len(apis)),
        capacity,
        free,
        accepting,
        age,
    ]


def _happenings(meters: ProcessMeters, queues: Sequence[str]) -> list[Metric]:
    """Events of the whole ledger, counted since this process began. Each queue's series begins at zero: what appears
    with its first event would show no increase."""
    families: list[Metric] = []
    for name, text, kind in (
        ("rollbook_rollouts_admitted", "Rollouts that were admitted.", RolloutAdmitted.TYPE),
        ("rollbook_claims", "Attempts that a scheduler began.", AttemptStarted.TYPE),
        ("rollbook_lease_expiries", "Rollouts that nobody polled in time.", LeaseExpired.TYPE),
        ("rollbook_cancellation_requests", "Requests to end a rollout.", CancellationRequested.TYPE),
    ):
        family = CounterMetricFamily(name, text, labels=["queue"])
        found = meters.total(kind, (_QUEUE,))
        for queue in dict.fromkeys((*queues, *(key[0] for key in found))):
            family.add_metric((queue,), found[queue,])
        families.append(family)
    ended = CounterMetricFamily("rollbook_attempts_ended", "Attempts that ended, and how.", labels=["queue", "outcome"])
    _add_all(ended, meters.total(AttemptEnded.TYPE, (_QUEUE, _OUTCOME)), queues, get_args(AttemptOutcome))
    finished = CounterMetricFamily(
        "rollbook_rollouts_finished",
        "Rollouts that finished, with the category of their error.",
        labels=["queue", "status", "category"],
    )
    by_category = meters.total(RolloutFinished.TYPE, (_QUEUE, _OUTCOME, _CATEGORY))
    _add_all(finished, by_category, queues, _FINAL, rest=("",))
    return [*families, ended, finished]


def _add_all(
    family: CounterMetricFamily,
    found: dict[tuple[str, ...], int],
    queues: Sequence[str],
    outcomes: Sequence[str],
    *,
    rest: tuple[str, ...] = (),
) -> None:
    expected = {(queue, outcome, *rest): 0 for queue in queues for outcome in outcomes}
    for labels, value in {**expected, **found}.items():
        family.add_metric(labels, value)


def _of_this_process(ledger: Ledger, meters: ProcessMeters) -> list[Metric]:
    return [
        *writer_metrics(PREFIX, ledger),
        histogram(
            f"{PREFIX}_wake_seconds",
            "From a change of status, by the ledger's clock, to the waking of who waits for it here.",
            meters.wake_sec,
        ),
        loop_lag_metric(PREFIX, meters.loop_lag.lag_sec),
        gauge(f"{PREFIX}_parked_polls", "Polls that wait for a change.", ledger.feed.watched),
        gauge(f"{PREFIX}_open_streams", "Event streams that are open.", meters.open_streams),
    ]
