"""A long ledger: what health, admission, claims and polls cost beside a million rollouts, over an empty one."""

from __future__ import annotations

import asyncio
import http.client
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from rollbook.ledger.ledger import Ledger
from rollbook_client.messages import POLLING_LEASE_HEADER

from . import work
from .machine import Patience
from .places import Place
from .processes import Server, free_port, rollbook
from .report import Cell, Floor, Report, Table, median

SUBJECT = "costs beside a million finished rollouts"
WRITTEN = 2_000
COPIES = 499
QUICK_COPIES = 49
REPEATS = 300
MOST_RATIO = 1.2
_MIB = 1024 * 1024
_START, _HEALTH, _ADMISSION, _CLAIM, _RESULT = (
    "start to the first answer",
    "GET /health",
    "POST /rollout",
    "claim, one rollout",
    "GET result of an ended rollout",
)


class Side:
    """One of the two ledgers, with an API and with a scheduler that the benchmark plays itself."""

    def __init__(self, server: Server, ledger: Ledger, runner: asyncio.Runner) -> None:
        self._server = server
        self._ledger = ledger
        self._runner = runner
        self._connection = http.client.HTTPConnection(server.HOST, server.port, timeout=30)
        runner.run(ledger.submit(work.register()))

    def health(self, _: int) -> None:
        """`GET /health`."""
        self._ask("GET", "/health", b"", 200)

    def admit(self, number: int) -> None:
        """`POST /rollout`."""
        body = {
            "initial_messages": [{"role": "user", "content": "17 x 23?"}],
            "chat_completions_url": "http://127.0.0.1:9/v1",
            "rollout_id": f"over-http-{number}",
            "label": "391",
        }
        self._ask("POST", "/rollout", msgspec.json.encode(body), 202)

    def result(self, number: int) -> None:
        """`GET /rollout/ID/result` of a rollout that is over."""
        body = self._ask("GET", f"/rollout/ended-{number}/result", b"", 200)
        if body.get("status") != "success":
            raise ConnectionError(f"a poll of a finished rollout was answered with {body}")

    def claim(self, _: int) -> None:
        """The oldest of those that wait."""
        (claimed,) = self._runner.run(self._ledger.submit(work.claim(1)))
        self._claimed = claimed.rollout_id

    def finish(self, _: int) -> None:
        """The one that was claimed last."""
        self._runner.run(self._ledger.submit(work.finish(self._claimed)))

    def end_some(self) -> None:
        """Rollouts whose token is known, from their admission to their end."""
        ids = [f"ended-{number}" for number in range(REPEATS)]

        async def live() -> None:
            for batch in work.life(ids):
                await asyncio.gather(*(self._ledger.submit(command) for command in batch))

        self._runner.run(live())

    def _ask(self, method: str, path: str, body: bytes, expected: int) -> dict[str, object]:
        headers = {"content-type": "application/json", POLLING_LEASE_HEADER: work.TOKEN}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != expected:
            raise ConnectionError(f"{method} {path} was answered with {answer.status}: {text.decode()}")
        return msgspec.json.decode(text, type=dict[str, object])


def run(place: Place, *, quick: bool) -> Report:
    """Measure the same calls on an empty and on a long ledger, in turn."""
    copies = QUICK_COPIES if quick else COPIES
    patience = Patience()
    with place.ledger() as empty, place.ledger() as long:
        start = time.perf_counter()
        asyncio.run(work.fill(long, WRITTEN))
        place.multiply(long, copies)
        filled = time.perf_counter() - start
        size = place.size_bytes(long) / _MIB
        patience.wait()
        bare, full = _costs(empty, long)
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
        tuple(
            Floor(f"{what} over an empty ledger", full[what] / bare[what], most=MOST_RATIO)
            for what in bare
            if what != _START
        ),
        (
            f"The long ledger: {size:,.0f} MiB, made in {filled:.0f} s. Each call goes to both ledgers by turns.",
            *patience.notes,
        ),
    )


def _costs(*urls: str) -> tuple[dict[str, float], ...]:
    """Median milliseconds by call, of each ledger."""
    costs: tuple[dict[str, float], ...] = tuple({} for _ in urls)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        sides: list[Side] = []
        for url, found in zip(urls, costs, strict=True):
            start = time.perf_counter()
            server = stack.enter_context(_api(url))
            found[_START] = time.perf_counter() - start
            ledger = runner.run(Ledger.open(url))
            stack.callback(_close, runner, ledger)
            sides.append(Side(server, ledger, runner))
        for name, call, between in (
            (_HEALTH, Side.health, None),
            (_ADMISSION, Side.admit, None),
            (_CLAIM, Side.claim, Side.finish),
        ):
            _by_turns(sides, costs, name, call, between)
        for side in sides:
            side.end_some()
        _by_turns(sides, costs, _RESULT, Side.result, None)
    return costs


def _by_turns(
    sides: list[Side],
    costs: tuple[dict[str, float], ...],
    name: str,
    call: Callable[[Side, int], None],
    between: Callable[[Side, int], None] | None,
) -> None:
    """Note the median time of a call on each side; ``between`` undoes what it did, untimed."""
    times: list[list[float]] = [[] for _ in sides]
    for number in range(REPEATS):
        # Each is the first one half of the time: what the other one left to do is done then.
        for side, taken in list(zip(sides, times, strict=True))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            call(side, number)
            taken.append((time.perf_counter() - start) * 1_000)
            if between is not None:
                between(side, number)
    for found, taken in zip(costs, times, strict=True):
        found[name] = median(taken)


def _close(runner: asyncio.Runner, ledger: Ledger) -> None:
    runner.run(ledger.close())


@contextmanager
def _api(url: str) -> Iterator[Server]:
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
    with (
        tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder,
        Server(command, port=port, folder=Path(folder)) as server,
    ):
        yield server
