"""What a rollout of a task costs without its work: open, one step of a harness that does nothing, close.

No model call, no user code, an empty prompt's graph: what is left is the life cycle itself, the runtime's start and
stop, the session at the interception endpoint, and the trace that is written at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import uvloop

from rollbook.interception.endpoint import close_shared_endpoint
from rollbook.sdk.values import MessageDict
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes import BubblewrapRuntime, Runtime, SubprocessRuntime
from rollbook.tasks.task import Task

from .places import Place
from .report import Report, Table, percentile

SUBJECT = "open, step and close of a task whose harness does nothing"
TOGETHER = (1, 16)
ROLLOUTS = 200
URL = "http://127.0.0.1:9/v1"
"""Never called."""


class Nothing(Harness):
    """Yields at once."""

    async def run(self, exchange: Exchange) -> list[MessageDict] | None:
        return None


class Empty(Task[TaskData]):
    """No set-up, no hooks, no scores."""


def run(place: Place, *, quick: bool) -> Report:
    """Each runtime, one rollout after the other and several at once. The ledger's place does not matter."""
    del place
    count = ROLLOUTS // 10 if quick else ROLLOUTS
    runtimes: tuple[type[Runtime], ...] = (SubprocessRuntime, BubblewrapRuntime)
    rows: list[tuple[str | float | int | None, ...]] = [
        (runtime.__name__, together, *uvloop.run(_measured(runtime, together=together, count=count)))
        for runtime in runtimes
        for together in TOGETHER
    ]
    columns = ("runtime", "at once", "rollouts/s", "open p50 ms", "step p50 ms", "close p50 ms", "all p99 ms", "CPU ms")
    return Report(
        name="rollouts",
        subject=SUBJECT,
        tables=(Table(f"{count:,} rollouts each", columns, rows),),
        floors=(),
        notes=("CPU is this process's own; what bubblewrap's processes take is in the times.",),
    )


async def _measured(runtime: Callable[[], Runtime], *, together: int, count: int) -> tuple[float, ...]:
    spans: list[tuple[float, float, float]] = []
    left = iter(range(count))

    async def some() -> None:
        spans.extend([await _one(runtime, number) for number in left])

    await _one(runtime, -1)  # the endpoint starts with the first
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(some())
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    await close_shared_endpoint()
    opens, steps, closes = ([1000 * span for span in kind] for kind in zip(*spans, strict=True))
    alls = [1000 * sum(span) for span in spans]
    middle = [percentile(times, 0.5) for times in (opens, steps, closes)]
    return (count / took, *middle, percentile(alls, 0.99), 1000 * cpu / count)


async def _one(runtime: Callable[[], Runtime], number: int) -> tuple[float, float, float]:
    rollout = Rollout(
        Empty(), TaskData(id=f"r-{number}", prompt="nothing"), Nothing(), runtime, chat_completions_url=URL
    )
    began = time.perf_counter()
    opened = await rollout.open()
    at_open = time.perf_counter()
    await rollout.step()
    at_step = time.perf_counter()
    trace = await rollout.close()
    if not opened or not trace.ok:
        raise RuntimeError(f"a rollout that does nothing failed: {trace.errors}")
    return at_open - began, at_step - at_open, time.perf_counter() - at_step
