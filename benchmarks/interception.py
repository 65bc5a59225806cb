"""What the interception endpoint adds to a model call: time and CPU, plain and streamed, for 1, 64 and 512 rollouts.

Upstream, endpoint and rollouts are processes of their own. A call's own time is the upstream's and comes with its
answer; what is left of the call's latency is the way there and back. The endpoint adds the difference between that
and the same through no endpoint, measured in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import uvloop

from .machine import Patience
from .places import Place
from .processes import ROOT, Process, cpu_sec, tree
from .report import Floor, Report, Table, percentile

SUBJECT = "what the interception endpoint adds to a model call"
ROLLOUTS = (1, 64, 512)
MEASURED_SEC = 8.0
MODEL_SEC = {1: 0.05, 64: 1.0, 512: 1.0}
"""How long the model takes; for one rollout it is short, so that there are calls enough to count."""
BAR_ROLLOUTS = 64
MOST_MS = 2.0

_TURNS = [
    {"role": "user" if turn % 2 == 0 else "assistant", "content": "a turn of a conversation; " * 20}
    for turn in range(11)
]


class Way(msgspec.Struct, frozen=True):
    """Calls by one way: what each took beyond the model's own time, and CPU seconds of the endpoint for each."""

    overheads_ms: list[float]
    first_ms: list[float]
    """The same for the first piece of a stream."""
    cpu_ms: float

    def quantile(self, share: float) -> float:
        """Of the overheads."""
        return percentile(self.overheads_ms, share)


class Rollout(asyncio.Protocol):
    """One connection that calls again and again."""

    def __init__(self, url: str, *, streamed: bool, model_sec: float) -> None:
        parts = urlsplit(url)
        body = json.dumps(
            {
                "model": "bench",
                "messages": _TURNS,
                "stream": streamed,
                "model_sec": model_sec,
                "user": str(random.random()),
            }
        ).encode()
        self._request = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._streamed = streamed
        self._answer = b""
        self._first: float | None = None
        self._done: asyncio.Future[None] | None = None
        self.overheads_ms: list[float] = []
        self.first_ms: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Note when the first event and when the last byte came."""
        now = time.perf_counter()
        self._answer += data
        if self._streamed:
            if self._first is None and b"took" in self._answer:
                self._first = now
            over = self._answer.endswith(b"0\r\n\r\n")
        else:
            head, _, body = self._answer.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            over = bool(length) and len(body) >= int(length)
        if over:
            self._note(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """No call may lose its connection."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("an answer broke off"))

    async def call(self) -> None:
        """One call."""
        self._answer, self._first = b"", None
        self._done = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]
        await self._done

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def _note(self, now: float) -> None:
        if b" 200 " not in self._answer[:20]:
            raise RuntimeError(f"a call failed: {self._answer[:500]!r}")
        took = [float(part.partition(b"}")[0]) for part in self._answer.split(b'"took": ')[1:]]
        self.overheads_ms.append((now - self._began - took[-1]) * 1000)
        if self._first is not None:
            self.first_ms.append((self._first - self._began - took[0]) * 1000)
        assert self._done is not None
        self._done.set_result(None)


def run(place: Place, *, quick: bool) -> Report:
    """Each number of rollouts, plain and streamed, directly and through the endpoint, by turns."""
    patience = Patience()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the processes inherit it
    rows: list[tuple[str | float | int | None, ...]] = []
    added: dict[tuple[int, bool], float] = {}
    try:
        with _process("benchmarks.model_upstream") as (port, _):
            for rollouts in ROLLOUTS:
                with _process("benchmarks.intercepted", port, str(rollouts)) as (urls, endpoint):
                    for streamed in (False, True):
                        patience.wait()
                        direct, through = uvloop.run(
                            _both(port, json.loads(urls), endpoint, streamed=streamed, quick=quick)
                        )
                        added[rollouts, streamed] = through.quantile(0.5) - direct.quantile(0.5)
                        rows.append(_row(rollouts, direct, through, streamed=streamed))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return Report(
        name="interception",
        subject=SUBJECT,
        tables=(
            Table(
                "Milliseconds added to a call, and the endpoint's CPU for it",
                (
                    "rollouts at once",
                    "calls",
                    "p50",
                    "p99",
                    "first piece p50",
                    "CPU ms per call",
                    "directly p50",
                    "directly p99",
                ),
                rows,
            ),
        ),
        floors=tuple(
            Floor(
                f"added p50 at {BAR_ROLLOUTS} rollouts, {_kind(streamed)}",
                added[BAR_ROLLOUTS, streamed],
                most=MOST_MS,
                unit=" ms",
            )
            for streamed in (False, True)
        ),
        notes=(
            f"A model call takes {MODEL_SEC[64]:g} s, {MODEL_SEC[1]:g} s with one rollout; streams come in 20 pieces.",
            *patience.notes,
        ),
    )


def _row(rollouts: int, direct: Way, through: Way, *, streamed: bool) -> tuple[str | float | int | None, ...]:
    first = percentile(through.first_ms, 0.5) - percentile(direct.first_ms, 0.5) if streamed else None
    return (
        f"{rollouts} {_kind(streamed)}",
        len(through.overheads_ms),
        through.quantile(0.5) - direct.quantile(0.5),
        through.quantile(0.99) - direct.quantile(0.99),
        first,
        through.cpu_ms,
        direct.quantile(0.5),
        direct.quantile(0.99),
    )


def _kind(streamed: bool) -> str:
    return "streamed" if streamed else "plain"


async def _both(port: str, urls: list[str], endpoint: list[Process], *, streamed: bool, quick: bool) -> tuple[Way, Way]:
    directly = [f"http://127.0.0.1:{port}/v1"] * len(urls)
    direct = await _measured(directly, [], streamed=streamed, quick=quick)
    return direct, await _measured(urls, endpoint, streamed=streamed, quick=quick)


async def _measured(urls: list[str], processes: list[Process], *, streamed: bool, quick: bool) -> Way:
    model_sec = MODEL_SEC[len(urls)]
    loop = asyncio.get_running_loop()
    rollouts = []
    for url in urls:
        parts = urlsplit(url)

        def protocol(url: str = url) -> Rollout:
            return Rollout(url, streamed=streamed, model_sec=model_sec)

        _, rollout = await loop.create_connection(protocol, parts.hostname or "", parts.port or 0)
        rollouts.append(rollout)

    async def calls(rollout: Rollout, until: float) -> None:
        await asyncio.sleep(random.uniform(0, model_sec))
        while time.perf_counter() < until:
            await rollout.call()

    await asyncio.gather(*(calls(rollout, 0.0) for rollout in rollouts))
    await asyncio.gather(*(rollout.call() for rollout in rollouts))  # connections and code paths are warm then
    for rollout in rollouts:
        rollout.overheads_ms.clear()
        rollout.first_ms.clear()
    before = sum(map(cpu_sec, processes))
    until = time.perf_counter() + (MEASURED_SEC / 4 if quick else MEASURED_SEC)
    await asyncio.gather(*(calls(rollout, until) for rollout in rollouts))
    spent = sum(map(cpu_sec, processes)) - before
    for rollout in rollouts:
        rollout.close()
    overheads = [value for rollout in rollouts for value in rollout.overheads_ms]
    return Way(overheads, [value for rollout in rollouts for value in rollout.first_ms], spent * 1000 / len(overheads))


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> Iterator[tuple[str, list[Process]]]:
    """A process of ours: the first line it writes, and what `cpu_sec` takes."""
    command = (sys.executable, "-m", module, *arguments)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line:
                raise RuntimeError(f"{' '.join(command)} did not start")
            yield line, tree(process.pid)
        finally:
            process.kill()
