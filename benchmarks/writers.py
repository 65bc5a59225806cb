"""Several processes that write to the same rollouts at once: how fast, how long one waits, and that nothing is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import msgspec
import uvloop

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.refusals import LedgerError

from . import work
from .machine import Patience
from .places import Place
from .report import Cell, Floor, Report, Table, median, percentile

SUBJECT = "several processes that write to the same rollouts"
WRITERS = (1, 2, 4)
CALLERS = 64
"""Over all processes; those of each renew the leases of the first rollouts."""
LIMIT_SEC = 60.0


class Written(msgspec.Struct, frozen=True):
    """What the callers of one process saw."""

    latencies_sec: list[float]
    failed: int


class Sample(msgspec.Struct, frozen=True):
    """One run."""

    per_sec: float
    latencies_ms: list[float]
    failed: int
    lost: int
    """Answered submits whose event is not in the ledger."""


def run(place: Place, *, quick: bool) -> Report:
    """Measure one, two and four writers in turn."""
    rounds, seconds = (1, 0.5) if quick else (3, 1.0)
    patience = Patience()
    samples: dict[int, list[Sample]] = {}
    for _ in range(rounds):
        for writers in WRITERS:
            with place.ledger() as url:
                samples.setdefault(writers, []).append(_measure(url, writers, seconds, patience))
    return _report(place, samples, patience)


def _measure(url: str, writers: int, seconds: float, patience: Patience) -> Sample:
    ids = [f"{number:032x}" for number in range(CALLERS // writers)]
    uvloop.run(_admit(url, ids))
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(writers)]
    children = [context.Process(target=_write, args=(url, ids, seconds, theirs)) for _, theirs in pipes]
    try:
        for child in children:
            child.start()
        for ours, _ in pipes:
            _received(ours)
        patience.wait()
        start = time.perf_counter()
        for ours, _ in pipes:
            ours.send("go")
        parts = [msgspec.msgpack.decode(_received(ours), type=Written) for ours, _ in pipes]
        took = time.perf_counter() - start
    finally:
        for child in children:
            child.join(LIMIT_SEC)
            child.kill()
    answered = sum(len(part.latencies_sec) for part in parts)
    written = uvloop.run(_written(url)) - len(ids)
    return Sample(
        answered / took,
        [latency * 1_000 for part in parts for latency in part.latencies_sec],
        sum(part.failed for part in parts),
        max(0, answered - written),
    )


def _received(ours: Connection) -> bytes:
    if not ours.poll(LIMIT_SEC):
        raise TimeoutError(f"a writer did not answer within {LIMIT_SEC:g} s")
    return ours.recv_bytes()


async def _admit(url: str, ids: list[str]) -> None:
    ledger = await Ledger.open(url)
    await asyncio.gather(*(ledger.submit(work.admit(rollout_id)) for rollout_id in ids))
    await ledger.close()


async def _written(url: str) -> int:
    """The rollouts' events, by their rows, which must agree with their numbering."""
    ledger = await Ledger.open(url)
    (row,) = await ledger.reader.long_query("SELECT coalesce(sum(seq), 0) FROM rollouts")
    await ledger.close()
    return int(row[0])


def _write(url: str, ids: list[str], seconds: float, pipe: Connection) -> None:
    """In a process of its own."""
    uvloop.run(_callers(url, ids, seconds, pipe))


async def _callers(url: str, ids: list[str], seconds: float, pipe: Connection) -> None:
    ledger = await Ledger.open(url)
    latencies: list[float] = []
    failed = 0

    async def caller(rollout_id: str, until: float) -> None:
        nonlocal failed
        while (begun := time.perf_counter()) < until:
            try:
                await ledger.submit(work.poll(rollout_id))
            except LedgerError:
                failed += 1
            else:
                latencies.append(time.perf_counter() - begun)

    await ledger.submit(work.poll(ids[0]))  # its connections are open
    pipe.send_bytes(b"ready")
    await asyncio.to_thread(pipe.recv)
    until = time.perf_counter() + seconds
    await asyncio.gather(*(caller(rollout_id, until) for rollout_id in ids))
    await ledger.close()
    pipe.send_bytes(msgspec.msgpack.encode(Written(latencies, failed)))


def _report(place: Place, samples: dict[int, list[Sample]], patience: Patience) -> Report:
    rows: list[tuple[Cell, ...]] = []
    one = median([sample.per_sec for sample in samples[WRITERS[0]]])
    for writers, found in samples.items():
        rate = median([sample.per_sec for sample in found])
        together = [latency for sample in found for latency in sample.latencies_ms]
        row = (rate, rate / one, percentile(together, 0.5), percentile(together, 0.99), max(together))
        rows.append((str(writers), *row))
    everything = [sample for found in samples.values() for sample in found]
    return Report(
        "writers",
        SUBJECT,
        (
            Table(
                f"{CALLERS} callers over all processes; {place.durability}",
                ("processes", "submits/s", "over one process", "p50 ms", "p99 ms", "max ms"),
                rows,
            ),
        ),
        (
            Floor("submits that failed", sum(sample.failed for sample in everything), most=0),
            Floor("submits that were answered and are not there", sum(sample.lost for sample in everything), most=0),
        ),
        patience.notes,
    )
