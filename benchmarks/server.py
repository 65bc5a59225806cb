"""Whole servers beside each other: the reference, Rollbook, and one whose answers cost nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from .driving import CLIENT_PROCESSES, Drive, drive
from .machine import Patience
from .places import Place
from .processes import ROOT, Server, free_port, rollbook, shared_folder, watched
from .report import Cell, Floor, Report, Table, median

SUBJECT = "Rollbook beside the reference server, no-op workflow and grader"
ROLLOUTS = 1_500
CALLERS = (1, 4, 16, 64)
MAX_CONCURRENT = 64
REFERENCE, OURS, CEILING = "reference", "rollbook", "ceiling"
THROUGHPUT_BAR = 1.2
_MIB = 1024 * 1024
_ROLES = ("supervisor", "api", "scheduler", "runner")


class Sample(msgspec.Struct, frozen=True):
    """One drive of one server, with what the server's processes used meanwhile."""

    drive: Drive
    cpu_sec: dict[str, float]
    peak_bytes: int
    database_cpu_sec: float | None


type Samples = dict[tuple[str, int], list[Sample]]


def run(place: Place, *, quick: bool) -> Report:
    """Drive the servers in turn, round by round."""
    rounds = 1 if quick else 2
    patience = Patience()
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name, ExitStack() as stack:
        url = stack.enter_context(place.ledger())
        servers = {
            kind: stack.enter_context(server)
            for kind, server in (
                (REFERENCE, reference(Path(name))),
                (OURS, ours(Path(name), url)),
                (CEILING, ceiling(Path(name))),
            )
        }
        for server in servers.values():
            drive(server.url, rollouts=100, callers=4)
        for _ in range(rounds):
            for callers in CALLERS:
                rollouts = _rollouts(callers, quick=quick)
                for kind, server in servers.items():
                    patience.wait()
                    samples.setdefault((kind, callers), []).append(_sample(place, server, rollouts, callers))
    return _report(place, samples, patience, quick=quick)


def _rollouts(callers: int, *, quick: bool) -> int:
    return ROLLOUTS // (3 if quick else 1) // (3 if callers == 1 else 1)


def reference(folder: Path) -> Server:
    """The reference's server on the same workflow and grader."""
    port = free_port()
    command = (sys.executable, str(shared_folder() / "tools" / "osmosis_server.py"), str(port))
    return Server(command, port=port, folder=folder)


def ours(folder: Path, url: str) -> Server:
    """`rollbook serve` with one runner over the ledger: one API, one scheduler."""
    port = free_port()
    command = rollbook(
        "serve",
        str(ROOT / "benchmarks" / "noop.py"),
        *("--port", str(port), "--runners", "1", "--max-concurrent", str(MAX_CONCURRENT)),
        *("--database-url", url),
    )
    return Server(command, port=port, folder=folder, ready=_can_run)


def _can_run(health: dict[str, object]) -> bool:
    concurrency = health.get("concurrency")
    return isinstance(concurrency, dict) and concurrency.get("max_concurrent") == MAX_CONCURRENT


def ceiling(folder: Path) -> Server:
    """A server that admits everything and answers every poll with a success at once."""
    port = free_port()
    command = (sys.executable, str(shared_folder() / "tools" / "drive.py"), "--null", str(port))
    return Server(command, port=port, folder=folder, probe="/rollout/any/result")


def _sample(place: Place, server: Server, rollouts: int, callers: int) -> Sample:
    processes = server.processes()
    before = place.cpu_sec()
    with watched(processes) as usage:
        result = drive(server.url, rollouts=rollouts, callers=callers, pids=[process.pid for process in processes])
    after = place.cpu_sec()
    spent = None if before is None or after is None else after - before
    return Sample(result, usage.cpu_sec, usage.peak_bytes, spent)


def _report(place: Place, samples: Samples, patience: Patience, *, quick: bool) -> Report:
    medians = {key: _median(drives) for key, drives in samples.items()}
    speed: list[tuple[Cell, ...]] = []
    ratios: list[tuple[Cell, ...]] = []
    shares: list[tuple[Cell, ...]] = []
    for callers in CALLERS:
        speed.extend((f"{callers} × {kind}", *medians[kind, callers]) for kind in (REFERENCE, OURS, CEILING))
        base, own, top = (medians[kind, callers] for kind in (REFERENCE, OURS, CEILING))
        share = _shares(samples[OURS, callers], _rollouts(callers, quick=quick))
        shares.append((str(callers), *share))
        most = _most(top, own[5] + float(share[-1] or 0.0))
        rates = (own[0] / base[0], top[0] / base[0], most / base[0])
        ratios.append((str(callers), *rates, own[3] / base[3], own[5] / base[5], own[6] / base[6]))
    return Report(
        "server",
        SUBJECT,
        (
            Table(
                f"callers × server ({CLIENT_PROCESSES} client processes, every event of Rollbook's on disk)",
                (
                    "callers",
                    "rollouts/s",
                    "admission p50 ms",
                    "admission p99 ms",
                    "completion p50 ms",
                    "completion p99 ms",
                    "server CPU ms/rollout",
                    "peak memory MiB",
                ),
                speed,
            ),
            Table(
                "Rollbook over the reference",
                (
                    "callers",
                    "rollouts/s",
                    "ceiling's rollouts/s",
                    "most by CPU",
                    "completion p50",
                    "server CPU",
                    "memory",
                ),
                ratios,
            ),
            Table(
                "Where Rollbook's CPU goes, ms/rollout; the database's own is in no other figure",
                ("callers", *_ROLES, "database"),
                shares,
            ),
        ),
        _floors(place, medians),
        (
            f"Medians of {max(len(drives) for drives in samples.values())} rounds; servers alternate within a round. "
            "Most by CPU: the rollouts/s at which server, database and clients have used up the cores; the clients' "
            "part is what the ceiling's run leaves to them. "
            "Memory is the proportional share (PSS) of all processes of a server at its sampled peak.",
            *patience.notes,
        ),
    )


def _median(drives: list[Sample]) -> tuple[float, ...]:
    def middle(*path: str) -> float:
        return median([getattr(sample.drive, path[0]) for sample in drives])

    return (
        middle("rollouts_per_s"),
        middle("admission_p50_ms"),
        middle("admission_p99_ms"),
        middle("completion_p50_ms"),
        middle("completion_p99_ms"),
        middle("server_cpu_ms_per_rollout"),
        median([sample.peak_bytes / _MIB for sample in drives]),
    )


def _most(top: tuple[float, ...], spent_ms: float) -> float:
    """Rollouts/s that the cores allow, where server and database spend so much CPU on each.

    What the clients spend is known from the ceiling's run, in which they use what its server leaves of the cores.
    """
    cores_ms = 1_000.0 * (os.cpu_count() or 1)
    return cores_ms / (cores_ms / top[0] - top[5] + spent_ms)


def _shares(drives: list[Sample], rollouts: int) -> list[Cell]:
    """The driver's total, split by what each process used while the driver ran; then what the database used."""
    total = median([sample.drive.server_cpu_ms_per_rollout for sample in drives])
    spent = {role: sum(sample.cpu_sec.get(role, 0.0) for sample in drives) for role in _ROLES}
    whole = sum(spent.values()) or 1.0
    database = [sample.database_cpu_sec for sample in drives if sample.database_cpu_sec is not None]
    return [
        *(total * spent[role] / whole for role in _ROLES),
        median(database) / rollouts * 1_000 if database else None,
    ]


def _floors(place: Place, medians: dict[tuple[str, int], tuple[float, ...]]) -> tuple[Floor, ...]:
    floors: list[Floor] = []
    for callers in (16, 64):
        base, own, top = (medians[kind, callers] for kind in (REFERENCE, OURS, CEILING))
        floors.append(Floor(f"{callers} callers: server CPU over the reference's", own[5] / base[5], most=1.0))
        if top[0] >= THROUGHPUT_BAR * base[0]:
            ratio = own[0] / base[0]
            floors.append(Floor(f"{callers} callers: rollouts/s over the reference's", ratio, least=THROUGHPUT_BAR))
    if place.most_lone_latency is not None:
        base, own = medians[REFERENCE, 1], medians[OURS, 1]
        floors.append(
            Floor("1 caller: completion p50 over the reference's", own[3] / base[3], most=place.most_lone_latency)
        )
    return tuple(floors)
