"""A long ledger: what health, admission, claims and polls cost beside a million rollouts, over an empty one."""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.ledger.sqlite.engines import database_path
from rollbook.ledger.sqlite.store import SqliteStore
from rollbook.ledger.urls import parse_url
from rollbook_client.messages import POLLING_LEASE_HEADER

from . import work
from .machine import Patience
from .polls import admit_over_http
from .processes import Server, free_port, rollbook
from .report import Cell, Floor, Report, Table, median

SUBJECT = "costs beside a million finished rollouts"
WRITTEN = 2_000
COPIES = 499
QUICK_COPIES = 49
REPEATS = 300
MOST_RATIO = 2.0
_MIB = 1024 * 1024


def run(*, quick: bool) -> Report:
    """Measure the same calls on an empty and on a long ledger."""
    copies = QUICK_COPIES if quick else COPIES
    patience = Patience()
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        empty, long = Path(name) / "empty", Path(name) / "long"
        for folder in (empty, long):
            folder.mkdir()
        work.fill(empty, 0)
        start = time.perf_counter()
        path = database_path(parse_url(work.fill(long, WRITTEN)))
        work.multiply(path, copies)
        filled = time.perf_counter() - start
        size = path.stat().st_size / _MIB
        patience.wait()
        bare = _costs(empty)
        patience.wait()
        full = _costs(long)
    rollouts = WRITTEN * (copies + 1)
    rows: list[tuple[Cell, ...]] = [(what, bare[what], full[what], full[what] / bare[what]) for what in bare]
    return Report(
        "million",
        SUBJECT,
        (
            Table(
                f"p50 of {REPEATS} calls in turn, ms (the start: once, in seconds)",
                ("call", "empty", f"{rollouts:,} rollouts", "ratio"),
                rows,
            ),
        ),
        tuple(Floor(f"{what} over an empty ledger", full[what] / bare[what], most=MOST_RATIO) for what in bare),
        (f"The long ledger: {size:,.0f} MiB, made in {filled:.0f} s.", *patience.notes),
    )


def _costs(folder: Path) -> dict[str, float]:
    """Median milliseconds by call."""
    url = work.database_url(folder)
    port = free_port()
    command = rollbook(
        "serve",
        "--no-scheduler",
        "--queue",
        work.QUEUE,
        "--port",
        str(port),
        "--database-url",
        url,
    )
    costs: dict[str, float] = {}
    start = time.perf_counter()
    with Server(command, port=port, folder=folder) as server:
        costs["start to the first answer"] = time.perf_counter() - start
        costs["GET /health"] = _median_ms(lambda _: server.get("/health"), range(REPEATS))
        start = time.perf_counter()
        tokens = admit_over_http(server, REPEATS)
        costs["POST /rollout"] = (time.perf_counter() - start) / REPEATS * 1_000
        costs["claim, one rollout"] = _claims(url)
        costs["GET result of an ended rollout"] = _polls(server, tokens)
    return costs


def _claims(url: str) -> float:
    """One waiting rollout after the other is claimed and ended, each in a transaction of its own."""
    store = SqliteStore(parse_url(url))
    try:
        store.run([work.register()])
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            (claimed,) = store.run([work.claim(1)]).answers
            times.append((time.perf_counter() - start) * 1_000)
            (ended,) = store.run([work.finish(claimed[0].rollout_id)]).answers
            if isinstance(ended, Exception):
                raise ended
    finally:
        store.close()
    return median(times)


def _polls(server: Server, tokens: dict[str, str]) -> float:
    connection = http.client.HTTPConnection(server.HOST, server.port, timeout=30)

    def poll(rollout_id: str) -> None:
        connection.request("GET", f"/rollout/{rollout_id}/result", headers={POLLING_LEASE_HEADER: tokens[rollout_id]})
        body = msgspec.json.decode(connection.getresponse().read())
        if body.get("status") != "success":
            raise ConnectionError(f"a poll of a finished rollout was answered with {body}")

    try:
        return _median_ms(poll, list(tokens))
    finally:
        connection.close()


def _median_ms[Item](call: Callable[[Item], object], items: range | list[Item]) -> float:
    times = []
    for item in items:
        start = time.perf_counter()
        call(item)  # type: ignore[arg-type]
        times.append((time.perf_counter() - start) * 1_000)
    return median(times)
