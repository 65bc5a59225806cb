"""Group commit: submits per second over the raw statements of the same rows, on an idle and beside a busy loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import uvloop

from rollbook.ledger.ledger import Ledger

from . import work
from .machine import Patience
from .places import Place
from .report import Cell, Floor, Report, Table, median, percentile

SUBJECT = "submits by group commit, over the raw write-set in the same run"
CALLERS = (1, 16, 64, 512)
FLOOR_CALLERS = 64
PAIRS = 32
"""Request loops beside the callers: enough to keep the event loop busy all the time."""

_LINE = json.dumps({"messages": [{"role": "user", "content": "x" * 200}] * 5}).encode() + b"\n"


class Submits(msgspec.Struct, frozen=True):
    """What callers in a closed loop saw."""

    per_sec: float
    latencies_sec: list[float]
    requests_per_sec: float = 0.0


def run(place: Place, *, quick: bool) -> Report:
    """Measure the ledger, the raw statements, and the ledger beside a busy loop, in turn."""
    rounds, seconds = (1, 0.5) if quick else (3, 1.0)
    patience = Patience()
    submits: dict[int, list[Submits]] = {}
    raw: dict[int, list[float]] = {}
    busy: list[Submits] = []
    for _ in range(rounds):
        for callers in CALLERS:
            with place.ledger() as url:
                patience.wait()
                submits.setdefault(callers, []).append(_measure(url, callers, seconds, pairs=0))
                patience.wait()
                raw.setdefault(callers, []).append(place.raw_submits_per_sec(url, callers, seconds))
        with place.ledger() as url:
            patience.wait()
            busy.append(_measure(url, FLOOR_CALLERS, seconds, pairs=PAIRS))
    return _report(place, submits, raw, busy, patience)


def _measure(url: str, callers: int, seconds: float, *, pairs: int) -> Submits:
    return uvloop.run(_submits(url, callers, seconds, pairs=pairs))


async def _submits(url: str, callers: int, seconds: float, *, pairs: int) -> Submits:
    async with _ledger(url) as ledger:
        ids = [f"{number:032x}" for number in range(callers)]
        await asyncio.gather(*(ledger.submit(work.admit(rollout_id)) for rollout_id in ids))
        async with _busy_loop(pairs) as served:
            latencies: list[float] = []
            start = time.perf_counter()
            served_before = served[0]
            await asyncio.gather(*(_caller(ledger, rollout_id, start + seconds, latencies) for rollout_id in ids))
            took = time.perf_counter() - start
        return Submits(len(latencies) / took, latencies, (served[0] - served_before) / took)


async def _caller(ledger: Ledger, rollout_id: str, until: float, latencies: list[float]) -> None:
    command = work.poll(rollout_id)
    while (begun := time.perf_counter()) < until:
        await ledger.submit(command)
        latencies.append(time.perf_counter() - begun)


@contextlib.asynccontextmanager
async def _ledger(url: str) -> AsyncIterator[Ledger]:
    """A ledger with a peer at its hint socket, as under `serve`."""
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, peer:
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        ledger = await Ledger.open(url, hint_socket=ours)
        loop.add_reader(peer.fileno(), _drain, peer)
        try:
            yield ledger
        finally:
            await ledger.close()
            loop.remove_reader(peer.fileno())


def _drain(peer: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while peer.recv(4096):
            pass


@contextlib.asynccontextmanager
async def _busy_loop(pairs: int) -> AsyncIterator[list[int]]:
    """So many clients and servers exchange JSON lines on this loop as fast as they can; the count of answers."""
    served = [0]
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []
    for ours, theirs in _socket_pairs(pairs):
        for end, talk in ((ours, _ask), (theirs, _answer)):
            reader, writer = await asyncio.open_connection(sock=end)
            writers.append(writer)
            tasks.append(asyncio.create_task(talk(reader, writer, served)))
    try:
        yield served
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()


def _socket_pairs(count: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    for _ in range(count):
        yield socket.socketpair()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: list[int]) -> None:
    while True:
        writer.write(_LINE)
        json.loads(await reader.readline())
        served[0] += 1


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: list[int]) -> None:
    while line := await reader.readline():
        writer.write(json.dumps(json.loads(line)).encode() + b"\n")
        await writer.drain()


def _report(
    place: Place,
    submits: dict[int, list[Submits]],
    raw: dict[int, list[float]],
    busy: list[Submits],
    patience: Patience,
) -> Report:
    rows: list[tuple[Cell, ...]] = []
    ratios: dict[int, float] = {}
    for callers in CALLERS:
        rate = median([sample.per_sec for sample in submits[callers]])
        ratios[callers] = median([s.per_sec / r for s, r in zip(submits[callers], raw[callers], strict=True)])
        rows.append((str(callers), rate, *_latency(submits[callers]), median(raw[callers]), ratios[callers]))
    idle_rate = median([sample.per_sec for sample in submits[FLOOR_CALLERS]])
    busy_rate = median([sample.per_sec for sample in busy])
    over_idle = median([b.per_sec / i.per_sec for b, i in zip(busy, submits[FLOOR_CALLERS], strict=True)])
    requests = median([sample.requests_per_sec for sample in busy])
    return Report(
        "ledger",
        SUBJECT,
        (
            Table(
                f"{place.durability}; one event and one row per submit (a lease renewal)",
                ("callers", "submits/s", "p50 ms", "p99 ms", "raw submits/s", "over raw"),
                rows,
            ),
            Table(
                f"{FLOOR_CALLERS} callers beside a request loop that keeps the event loop busy",
                ("loop", "submits/s", "p50 ms", "p99 ms", "requests/s beside", "over idle"),
                [
                    ("idle", idle_rate, *_latency(submits[FLOOR_CALLERS]), None, 1.0),
                    ("busy", busy_rate, *_latency(busy), requests, over_idle),
                ],
            ),
        ),
        (
            Floor(f"{FLOOR_CALLERS} callers: submits/s over raw", ratios[FLOOR_CALLERS], least=place.least_over_raw),
            Floor("busy loop: submits/s over idle", over_idle, least=place.least_busy_over_idle),
        ),
        (
            f"Raw: {place.raw}, the same event and rollout rows in batches of as many as there are callers; no "
            "triggers, no index but the keys. Ratios are the medians of those within a round.",
            *patience.notes,
        ),
    )


def _latency(samples: list[Submits]) -> tuple[float, float]:
    together = [latency * 1_000 for sample in samples for latency in sample.latencies_sec]
    return percentile(together, 0.5), percentile(together, 0.99)
