"""A thousand parked long polls on one API process: their memory, how fast they wake, and what they hold open."""

from __future__ import annotations

import asyncio
import http.client
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
from .processes import Process, Server, free_port, memory_bytes, open_files, rollbook
from .report import Floor, Report, Table, percentile

SUBJECT = "1,000 parked long polls on one API process"
PARKED = 1_000
SINGLY = 100
MOST_MIB = 300
MOST_WAKE_MS = 100.0
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


class Outcome(msgspec.Struct):
    """What was measured."""

    memory_before: int = 0
    memory_parked: int = 0
    files_before: int = 0
    files_parked: int = 0
    single_ms: list[float] = []
    herd_ms: list[float] = []


def run(*, quick: bool) -> Report:
    """Park them, wake a hundred one by one and the rest at once."""
    patience = Patience()
    singly = SINGLY // 4 if quick else SINGLY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    try:
        with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
            patience.wait()
            outcome = _measure(Path(name), singly)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _report(outcome, patience)


def _measure(folder: Path, singly: int) -> Outcome:
    port = free_port()
    url = work.database_url(folder)
    command = rollbook(
        "serve",
        *("--no-scheduler", "--queue", work.QUEUE, "--port", str(port), "--database-url", url),
        *("--result-wait", "60", "--lease-timeout", "300"),
    )
    with Server(command, port=port, folder=folder) as server:
        outcome = Outcome()
        processes = server.processes()
        outcome.memory_before, outcome.files_before = _held(processes, folder)
        tokens = admit_over_http(server, PARKED + singly)
        uvloop.run(_park_and_wake(outcome, server, processes, url, tokens, singly))
        return outcome


def _held(processes: list[Process], folder: Path) -> tuple[int, int]:
    """Memory and descriptors on the database, over the server's processes."""
    path = folder / "ledger.sqlite3"
    return (
        sum(memory_bytes(process) for process in processes),
        sum(open_files(process, path) for process in processes),
    )


def admit_over_http(server: Server, count: int) -> dict[str, str]:
    """Admit so many rollouts over one connection; their polling tokens by id."""
    connection = http.client.HTTPConnection(server.HOST, server.port, timeout=LIMIT_SEC)
    tokens = {}
    for number in range(count):
        rollout_id = f"over-http-{number}"
        body = {
            "initial_messages": [{"role": "user", "content": "17 x 23?"}],
            "chat_completions_url": "http://127.0.0.1:9/v1",
            "rollout_id": rollout_id,
            "label": "391",
        }
        connection.request("POST", "/rollout", msgspec.json.encode(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 202:
            raise ConnectionError(f"an admission was answered with {answer.status}: {text.decode()}")
        tokens[rollout_id] = msgspec.json.decode(text)["polling_lease_token"]
    connection.close()
    return tokens


async def _park_and_wake(
    outcome: Outcome, server: Server, processes: list[Process], url: str, tokens: dict[str, str], singly: int
) -> None:
    ledger = await Ledger.open(url)
    try:
        pollers = await _park(server, ledger, tokens)
        outcome.memory_parked, outcome.files_parked = _held(processes, Path(ledger.url.database or "").parent)
        for rollout_id in list(tokens)[:singly]:
            outcome.single_ms += await _wake(
                ledger, Cancel(requested_by="bench", ids=(rollout_id,)), [pollers.pop(rollout_id)]
            )
        outcome.herd_ms = await _wake(ledger, Cancel(requested_by="bench", everything=True), list(pollers.values()))
    finally:
        await ledger.close()


async def _park(server: Server, ledger: Ledger, tokens: dict[str, str]) -> dict[str, Poller]:
    """All polls sent, and their leases renewed: they wait."""
    loop = asyncio.get_running_loop()
    pollers = {}
    for rollout_id, token in tokens.items():
        request = f"GET /rollout/{rollout_id}/result HTTP/1.1\r\nhost: bench\r\n{POLLING_LEASE_HEADER}: {token}\r\n\r\n"
        pollers[rollout_id] = poller = Poller(request.encode())
        await loop.create_connection(lambda poller=poller: poller, server.HOST, server.port)  # type: ignore[misc]
    async with asyncio.timeout(LIMIT_SEC):
        while await _renewals(ledger) < len(tokens):  # noqa: ASYNC110  # another process writes; its commits are seen here
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


def _report(outcome: Outcome, patience: Patience) -> Report:
    before, parked = outcome.memory_before / _MIB, outcome.memory_parked / _MIB
    rows = [
        (how, len(times), percentile(times, 0.5), percentile(times, 0.99), max(times))
        for how, times in (("one by one", outcome.single_ms), ("all at once", outcome.herd_ms))
    ]
    return Report(
        "polls",
        SUBJECT,
        (
            Table(
                "held by the server",
                ("", "memory MiB", "open files on the database"),
                [("before", before, outcome.files_before), ("parked", parked, outcome.files_parked)],
            ),
            Table(
                "from a commit in another process to the whole answer",
                ("woken", "polls", "p50 ms", "p99 ms", "max ms"),
                list(rows),
            ),
        ),
        (
            Floor("memory with all parked", parked, most=MOST_MIB, unit=" MiB"),
            Floor("woken one by one: p99", percentile(outcome.single_ms, 0.99), most=MOST_WAKE_MS, unit=" ms"),
            Floor("woken at once: p99", percentile(outcome.herd_ms, 0.99), most=MOST_WAKE_MS, unit=" ms"),
            Floor("more open files on the database", outcome.files_parked - outcome.files_before, most=4),
        ),
        (
            "Without a hint socket: the API looks at the file every 10 ms. The one client process that takes all the "
            "answers is in the times.",
            *patience.notes,
        ),
    )
