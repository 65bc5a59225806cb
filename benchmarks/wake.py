"""Waking across processes: from a submit in one process to the feed's listener in another."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
import time
from multiprocessing.connection import Connection

import uvloop

from rollbook.ledger.ledger import Ledger
from rollbook_projections import RolloutState

from . import work
from .machine import Patience
from .places import Place
from .report import Cell, Floor, Report, Table, percentile

SUBJECT = "from a submit in one process to the feed of another"
MOST_P99_MS = 20.0
GAP_SEC = 0.01
LIMIT_SEC = 60.0


def run(place: Place, *, quick: bool) -> Report:
    """Measure each way of the place: on SQLite with the hint socket that `serve` gives its children, and without."""
    submits = 100 if quick else 400
    patience = Patience()
    rows: list[tuple[Cell, ...]] = []
    floors: list[Floor] = []
    for how, hinted in place.ways_to_wake:
        with place.ledger() as url:
            patience.wait()
            appended, waked = _measure(url, submits, hinted=hinted)
        rows.append((how, *(percentile(waked, share) for share in (0.5, 0.99, 1.0)), percentile(appended, 0.5)))
        floors.append(Floor(f"{how}: p99", percentile(waked, 0.99), most=MOST_P99_MS, unit=" ms"))
    return Report(
        "wake",
        SUBJECT,
        (
            Table(
                f"{submits} admissions, about {1 / GAP_SEC:.0f} a second; the submit itself is in the times",
                ("how", "p50 ms", "p99 ms", "max ms", "submit p50 ms"),
                rows,
            ),
        ),
        tuple(floors),
        patience.notes,
    )


def _measure(url: str, submits: int, *, hinted: bool) -> tuple[list[float], list[float]]:
    """Milliseconds of each submit, and from its start to the other process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    receive, send = context.Pipe(duplex=False)
    with ours, theirs, receive, send:
        child = context.Process(target=_listen, args=(url, submits, theirs if hinted else None, send))
        child.start()
        try:
            receive.recv()  # the child's feed follows
            begun = uvloop.run(_submit(url, submits, ours if hinted else None))
            if not receive.poll(LIMIT_SEC):
                raise TimeoutError(f"the other process did not see all {submits} submits within {LIMIT_SEC:g} s")
            seen: dict[str, float] = receive.recv()
        finally:
            child.join(LIMIT_SEC)
            child.kill()
    appended = [(ended - start) * 1_000 for start, ended in begun.values()]
    return appended, [(seen[rollout_id] - start) * 1_000 for rollout_id, (start, _) in begun.items()]


async def _submit(url: str, submits: int, hint_socket: socket.socket | None) -> dict[str, tuple[float, float]]:
    times: dict[str, tuple[float, float]] = {}
    ledger = await Ledger.open(url, hint_socket=hint_socket)
    gaps = random.Random(7)
    for number in range(submits):
        await asyncio.sleep(gaps.uniform(0.2, 1.8) * GAP_SEC)
        rollout_id = f"wake-{number}"
        start = time.monotonic()
        await ledger.submit(work.admit(rollout_id))
        times[rollout_id] = (start, time.monotonic())
    await ledger.close()
    return times


def _listen(url: str, submits: int, hint_socket: socket.socket | None, send: Connection) -> None:
    """In the other process: note when the feed tells of each rollout (the monotonic clock is the machine's)."""
    uvloop.run(_note(url, submits, hint_socket, send))


async def _note(url: str, submits: int, hint_socket: socket.socket | None, send: Connection) -> None:
    seen: dict[str, float] = {}
    complete = asyncio.Event()

    def told(changed: dict[int, RolloutState]) -> None:
        now = time.monotonic()
        for state in changed.values():
            seen.setdefault(state.rollout_id, now)
        if len(seen) >= submits:
            complete.set()

    ledger = await Ledger.open(url, hint_socket=hint_socket)
    ledger.feed.listen(told)
    send.send("ready")
    async with asyncio.timeout(LIMIT_SEC):
        await complete.wait()
    send.send(seen)
    await ledger.close()
