"""Thousands of parked long polls on one API process: what they cost, how fast they wake, and what they hold open."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from rollbook.ledger.commands import Cancel
from rollbook.ledger.ledger import Ledger
from rollbook_client.messages import POLLING_LEASE_HEADER

from . import work
from .machine import Patience
from .places import Place
from .processes import Server, cpu_sec, free_port, memory_bytes, rollbook
from .report import Floor, Report, Table, percentile

SUBJECT = "parked long polls on one API process"
WATCHED_SEC = 5.0
WAIT_SEC, LEASE_SEC = 100, 300
"""No poll times out while they are measured."""
SINGLY = 100
MOST_MIB = 300
MOST_WAKE_MS = 100.0
WAKE_BAR_POLLS = 1_000
"""So many are answered within that when they are woken at once; more need longer in proportion."""
LIMIT_SEC = 60.0
_MIB = 1024 * 1024


class Poller(asyncio.Protocol):
    """One connection with one poll; ``answered`` resolves to the time its whole answer was there."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._answer = b""
        self.answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the poll."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Note when the last byte came."""
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if separator and len(body) >= _content_length(head) and not self.answered.done():
            if b'"cancelled"' not in body:
                self.answered.set_exception(ValueError(f"a poll woke too early: {self._answer!r}"))
            else:
                self.answered.set_result(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        """A poll without an answer failed."""
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionError("the server closed a parked poll's connection"))


class Held(msgspec.Struct, frozen=True):
    """What the server's processes hold and have used."""

    memory: int
    files: int
    cpu_sec: float


class Outcome(msgspec.Struct, frozen=True):
    """What was measured."""

    before: Held
    parked: Held
    later: Held
    """`WATCHED_SEC` later."""
    answered: Held
    single_ms: list[float]
    herd_ms: list[float]


def run(place: Place, *, quick: bool) -> Report:
    """Park them, wake a hundred one by one and the rest at once."""
    patience = Patience()
    singly = SINGLY // 4 if quick else SINGLY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    try:
        with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name, place.ledger() as url:
            patience.wait()
            outcome = _measure(place, url, Path(name), singly)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _report(place, outcome, patience)


def _measure(place: Place, url: str, folder: Path, singly: int) -> Outcome:
    port = free_port()
    command = rollbook(
        "serve",
        *("--no-scheduler", "--queue", work.QUEUE, "--port", str(port), "--database-url", url),
        *("--result-wait", f"{WAIT_SEC}", "--lease-timeout", f"{LEASE_SEC}"),
    )
    with Server(command, port=port, folder=folder) as server:
        return uvloop.run(_park_and_wake(place, server, url, singly))


async def _park_and_wake(place: Place, server: Server, url: str, singly: int) -> Outcome:
    processes = server.processes()

    def held() -> Held:
        return Held(
            sum(memory_bytes(process) for process in processes),
            place.holding(url, processes),
            sum(cpu_sec(process) for process in processes),
        )

    ledger = await Ledger.open(url)
    try:
        ids = [f"parked-{number}" for number in range(place.parked_polls + singly)]
        await asyncio.gather(*(ledger.submit(work.admit(rollout_id)) for rollout_id in ids))
        before = held()
        pollers = await _park(server, ledger, ids)
        parked = held()
        await asyncio.sleep(WATCHED_SEC)
        later = held()
        single_ms: list[float] = []
        for rollout_id in ids[:singly]:
            one = Cancel(requested_by="bench", ids=(rollout_id,))
            single_ms += await _wake(ledger, one, [pollers.pop(rollout_id)])
        herd_ms = await _wake(ledger, Cancel(requested_by="bench", everything=True), list(pollers.values()))
        return Outcome(before, parked, later, held(), single_ms, herd_ms)
    finally:
        await ledger.close()


async def _park(server: Server, ledger: Ledger, ids: list[str]) -> dict[str, Poller]:
    """All polls sent, and their leases renewed: they wait."""
    loop = asyncio.get_running_loop()
    pollers = {}
    head = f"host: bench\r\n{POLLING_LEASE_HEADER}: {work.TOKEN}\r\n\r\n"
    for rollout_id in ids:
        request = f"GET /rollout/{rollout_id}/result HTTP/1.1\r\n{head}"
        pollers[rollout_id] = poller = Poller(request.encode())
        await loop.create_connection(lambda poller=poller: poller, server.HOST, server.port)  # type: ignore[misc]
    async with asyncio.timeout(LIMIT_SEC):
        while await _renewals(ledger) < len(ids):  # noqa: ASYNC110  # another process writes; its commits are seen here
            await asyncio.sleep(0.05)
    return pollers


async def _renewals(ledger: Ledger) -> int:
    count: int = (await ledger.reader.query("SELECT count(*) FROM events WHERE type = 'lease_renewed'"))[0][0]
    return count


async def _wake(ledger: Ledger, command: Cancel, pollers: list[Poller]) -> list[float]:
    """Milliseconds from the commit, in this process, to each poll's answer."""
    await ledger.submit(command)
    committed = time.perf_counter()
    async with asyncio.timeout(LIMIT_SEC):
        times = await asyncio.gather(*(poller.answered for poller in pollers))
    return [(answered - committed) * 1_000 for answered in times]


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _report(place: Place, outcome: Outcome, patience: Patience) -> Report:
    before, parked, later, answered = outcome.before, outcome.parked, outcome.later, outcome.answered
    memory = parked.memory / _MIB
    rows = [
        (how, len(times), percentile(times, 0.5), percentile(times, 0.99), max(times))
        for how, times in (("one by one", outcome.single_ms), ("all at once", outcome.herd_ms))
    ]
    count = len(outcome.single_ms) + len(outcome.herd_ms)
    herd_ms = MOST_WAKE_MS * max(1.0, place.parked_polls / WAKE_BAR_POLLS)
    return Report(
        "polls",
        f"{place.parked_polls:,} {SUBJECT}",
        (
            Table(
                "held by the server",
                ("", "memory MiB", place.held),
                [("before", before.memory / _MIB, before.files), ("parked", memory, parked.files)],
            ),
            Table(
                "CPU of the server",
                ("while", "ms/poll", "ms/s"),
                [
                    ("they are sent and renewed", (parked.cpu_sec - before.cpu_sec) / count * 1_000, None),
                    ("they wait", None, (later.cpu_sec - parked.cpu_sec) / WATCHED_SEC * 1_000),
                    ("they are woken and answered", (answered.cpu_sec - later.cpu_sec) / count * 1_000, None),
                ],
            ),
            Table(
                "from a commit in another process to the whole answer",
                ("woken", "polls", "p50 ms", "p99 ms", "max ms"),
                list(rows),
            ),
        ),
        (
            Floor("memory with all parked", memory, most=MOST_MIB, unit=" MiB"),
            Floor("woken one by one: p99", percentile(outcome.single_ms, 0.99), most=MOST_WAKE_MS, unit=" ms"),
            Floor("woken at once: p99", percentile(outcome.herd_ms, 0.99), most=herd_ms, unit=" ms"),
            Floor(f"more {place.held}", parked.files - before.files, most=4),
        ),
        (
            "Without a hint socket: the API of a SQLite ledger looks at the file every 10 ms. The one client process "
            "that takes all the answers is in the times.",
            *patience.notes,
        ),
    )
