"""Several schedulers on one queue: from an admission to its claim, and until another process knows of that."""

from __future__ import annotations

import asyncio
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.secrets import RolloutSecrets
from rollbook_projections import RolloutState

from . import work
from .machine import Patience
from .places import Place
from .processes import ROOT, STOP_LIMIT_SEC, rollbook
from .report import Cell, Floor, Report, Table, percentile

SUBJECT = "from an admission to its claim by one of several schedulers"
SCHEDULERS = (1, 2, 4)
SLOTS = 8
GAP_SEC = 0.02
LIMIT_SEC = 60.0
MOST_CLAIM_MS = 100.0

_CLAIMS = """
    SELECT s.at - a.at, s.scheduler FROM attempt_starts s JOIN admissions a ON a.number = s.number
    WHERE s.attempt = 1
"""


class Claims(msgspec.Struct, frozen=True):
    """What was measured with some schedulers."""

    claim_ms: list[float]
    """By the ledger's clock."""
    seen_ms: list[float]
    """From the admission's answer to the news, in the process that admitted, that an attempt has started."""
    busiest: float
    """The share of the scheduler with the most claims."""


def run(place: Place, *, quick: bool) -> Report:
    """Admit at a steady pace in one process, with so many schedulers as processes of their own."""
    admissions = 100 if quick else 400
    patience = Patience()
    rows: list[tuple[Cell, ...]] = []
    floors: list[Floor] = []
    for schedulers in SCHEDULERS:
        with (
            tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name,
            place.ledger() as url,
            _schedulers(url, Path(name), schedulers),
        ):
            patience.wait()
            claims = uvloop.run(_measure(url, schedulers, admissions))
        times = (claims.claim_ms, claims.seen_ms)
        rows.append((str(schedulers), *(percentile(t, share) for t in times for share in (0.5, 0.99)), claims.busiest))
        p99 = percentile(claims.claim_ms, 0.99)
        floors.append(Floor(f"{schedulers} schedulers: claim p99", p99, most=MOST_CLAIM_MS, unit=" ms"))
    return Report(
        "claims",
        SUBJECT,
        (
            Table(
                f"{admissions} admissions, about {1 / GAP_SEC:.0f} a second; each scheduler has {SLOTS} slots",
                ("schedulers", "claim p50 ms", "claim p99 ms", "seen p50 ms", "seen p99 ms", "busiest one's share"),
                rows,
            ),
        ),
        tuple(floors),
        (
            "Claim: between the times of the two events in the ledger. Seen: from the admission's answer to the feed "
            "of the process that admitted.",
            *patience.notes,
        ),
    )


@contextmanager
def _schedulers(url: str, folder: Path, count: int) -> Iterator[None]:
    command = rollbook(
        "scheduler",
        str(ROOT / "benchmarks" / "noop.py"),
        *("--database-url", url, "--queue", work.QUEUE, "--max-concurrent", str(SLOTS)),
    )
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "schedulers.log").open("wb") as log:
            processes.extend(
                subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
                for _ in range(count)
            )
        yield
    finally:
        for process in processes:
            process.terminate()
        _wait(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            process.wait(STOP_LIMIT_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _measure(url: str, schedulers: int, admissions: int) -> Claims:
    ledger = await Ledger.open(url)
    try:
        async with asyncio.timeout(LIMIT_SEC):
            while not await _ready(ledger, schedulers):  # noqa: ASYNC110  # other processes become ready
                await asyncio.sleep(0.05)
        seen: dict[str, float] = {}
        complete = asyncio.Event()

        def told(changed: dict[int, RolloutState]) -> None:
            now = time.perf_counter()
            for state in changed.values():
                if state.attempt > 0:
                    seen.setdefault(state.rollout_id, now)
            if len(seen) >= admissions:
                complete.set()

        ledger.feed.listen(told)
        answered = await _admit(ledger, admissions)
        async with asyncio.timeout(LIMIT_SEC):
            await complete.wait()
        claims = await ledger.reader.query(_CLAIMS)
        counts = Counter(row[1] for row in claims)
        return Claims(
            [row[0] / 1_000 for row in claims],
            [(seen[rollout_id] - at) * 1_000 for rollout_id, at in answered.items()],
            max(counts.values()) / len(claims),
        )
    finally:
        await ledger.close()


async def _ready(ledger: Ledger, schedulers: int) -> bool:
    members = await ledger.reader.members("scheduler", 0)
    return [member.capacity for member in members] == [SLOTS] * schedulers


async def _admit(ledger: Ledger, admissions: int) -> dict[str, float]:
    """When each admission was answered."""
    gaps = random.Random(7)
    answered = {}
    for number in range(admissions):
        await asyncio.sleep(gaps.uniform(0.2, 1.8) * GAP_SEC)
        rollout_id = f"claimed-{number}"
        sealed = ledger.keys.seal(RolloutSecrets("http://127.0.0.1:9/v1"), rollout_id)
        await ledger.submit(msgspec.structs.replace(work.admit(rollout_id), sealed=sealed))
        answered[rollout_id] = time.perf_counter()
    return answered
