"""PROTOCOL, cancellations: at every await of open, step and close nothing is left, and the trace is in order.

"a cancellation aborts, frees everything and re-raises" (open), and the same of step and close: afterwards no process,
socket, session, folder or task is there, abort and close may be called again, and every timing has its end.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import sys
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import Struct, structs

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData
from rollbook.tasks.harnesses.base import Exchange, Harness
from rollbook.tasks.harnesses.chat import ChatHarness
from rollbook.tasks.harnesses.program import ProgramHarness
from rollbook.tasks.hooks import intercept, metric, reward, stop
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.storage import loads
from rollbook.traces.trace import Trace
from rollbook_client.events import TraceSaved
from tests.contract.tasks.cancelling import WHENS, When, cancelled_at
from tests.contract.tasks.playing import WAIT_SEC, Stage, WatchedEndpoint
from tests.support.model_server import ModelServer, Say

LOOP_END_SEC = 2.0
"""Within this a loop of workflows ends that nobody holds any more."""

AWAITS_MAX = 400
"""More than any operation has."""

AGENT = """
import os, socket
where, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
host, port = where.split(":")
said = open(os.environ["ROLLBOOK_MESSAGES"]).read().strip()
for turn in range(2):
    body = '{"model": "%s", "messages": %s}' % (os.environ["ROLLBOOK_MODEL"], said)
    head = f"POST /{path}/chat/completions HTTP/1.1\\r\\nHost: {where}\\r\\nConnection: close\\r\\n"
    head += f"Content-Type: application/json\\r\\nAuthorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body.encode())}\\r\\n\\r\\n{body}".encode())
        with connection.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"200"
            answer.read()
    said = said[:-1] + ', {"role": "assistant", "content": "42"}, {"role": "user", "content": "go on"}]'
"""
"""Speaks HTTP by itself: it is started hundreds of times, and no module takes as long as Python itself."""


class Busy(Task[TaskData]):
    """Runs something at every stage, and leaves a server behind."""

    async def setup(self, data: TaskData, runtime: Runtime) -> None:
        await runtime.run("sleep 9999 >/dev/null 2>&1 & echo started")

    async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
        await runtime.run(["true"])

    @intercept
    async def look(self, request: Request) -> None:
        await asyncio.sleep(0)

    @stop
    async def looks_too(self, response: Response) -> bool:
        await asyncio.sleep(0)
        return False

    @metric
    async def files(self, runtime: Runtime) -> float:
        return float((await runtime.run(["ls"])).exit_code)

    @reward
    async def right(self, runtime: Runtime) -> float:
        return float((await runtime.run(["true"])).exit_code == 0)


class Careful(ChatHarness):
    """A harness that holds something between segments and something for as long as the rollout is."""

    name: ClassVar[str] = "careful"
    held: ClassVar[set[str]] = set()

    async def setup(self, runtime: Runtime, data: TaskData) -> None:
        self.held.add("set-up")
        await runtime.run(["true"])

    async def run(self, exchange: Exchange) -> None:
        self.held.add("segment")
        await super().run(exchange)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.held.discard("segment")

    async def clean_up(self) -> None:
        await asyncio.sleep(0)
        self.held.discard("set-up")


def program() -> Harness:
    """A program of two calls."""
    return ProgramHarness([sys.executable, "-I", "-S", "-c", AGENT])


HARNESSES: dict[str, Callable[[], Harness]] = {"chat": Careful, "program": program}

type Operation = Callable[[Rollout], Awaitable[Any]]


async def _opened(rollout: Rollout) -> None:
    assert await rollout.open()


async def _stepped(rollout: Rollout) -> None:
    await _opened(rollout)
    assert await rollout.step()


OPERATIONS: dict[str, tuple[Operation | None, Callable[[Rollout], Any]]] = {
    "open": (None, lambda rollout: rollout.open()),
    "step": (_opened, lambda rollout: rollout.step()),
    "close": (_stepped, lambda rollout: rollout.close()),
    "close unscored": (_stepped, lambda rollout: rollout.close(scored=False)),
    "abort": (_stepped, lambda rollout: rollout.abort()),
}


class Left(Struct):
    """What this process holds."""

    descriptors: dict[str, int]
    children: list[str]
    tasks: list[str]
    folders: list[str]


def left(folder: Path) -> Left:
    """What is there now."""
    kinds: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            kind = str(entry.readlink()).partition(":")[0]
        except FileNotFoundError:  # the one that reads this folder
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
    return Left(
        descriptors=kinds,
        children=[child for task in Path("/proc/self/task").iterdir() for child in _children(task)],
        tasks=sorted(task.get_name() for task in asyncio.all_tasks()),
        folders=[path.name for path in folder.iterdir()] if folder.exists() else [],
    )


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


async def settled() -> None:
    """Let the loop turn: connections that were closed are gone a few turns later."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def after_others() -> None:
    """What other tests have left to the collector is gone: it would be counted here.

    Loops that somebody still holds do not end, and are counted before and after.
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "rollbook-workflows":
            thread.join(LOOP_END_SEC)


@pytest.mark.usefixtures("after_others")
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_anywhere_an_operation_leaves_nothing(
    tmp_path: Path, operation: str, harness: str, when: When
) -> None:
    folder = tmp_path / "runtimes"
    others = left(folder).children  # such as the tests' own database server
    await _play(folder, harness, operation, at=AWAITS_MAX, when=when)  # what is made once for the whole process
    empty = left(folder)
    assert empty.children == others
    for at in range(1, AWAITS_MAX):
        cancelled = await _play(folder, harness, operation, at=at, when=when)
        found = left(folder)
        assert found == empty, f"left by a cancellation at await {at}"
        assert Careful.held == set(), f"held after a cancellation at await {at}"
        if cancelled is None:
            assert at > 1, "the operation has no await"
            return
    pytest.fail(f"still cancelled at await {AWAITS_MAX}")


async def _play(folder: Path, harness: str, operation: str, *, at: int, when: When) -> bool | None:
    """One rollout that is cancelled there; whether it was, None where it has no such await."""
    before, act = OPERATIONS[operation]
    endpoint = WatchedEndpoint()
    await endpoint.start()
    stage = Stage(endpoint, folder)
    async with ModelServer(default=Say("42")) as model:
        rollout = stage.rollout(model, HARNESSES[harness](), task=Busy())
        if before is not None:
            await before(rollout)
        cancelled = await cancelled_at(at, act(rollout), when=when)
        if cancelled:
            _check_freed(rollout, stage)
            trace = rollout.trace
            spans = list(trace.spans)
            await rollout.abort()
            assert await rollout.close() is trace
            assert trace.spans == spans, "a call after the end changed the trace"
            # A close that had only to free things when it was cancelled has come to its judgement before.
            assert operation.startswith("close") or not trace.ok
            assert len(stage.tells(TraceSaved)) == 1
            assert await rollout.step() is False
        else:
            await rollout.close()
        _check_freed(rollout, stage)
        await endpoint.close()
    await settled()
    return cancelled


def _check_freed(rollout: Rollout, stage: Stage) -> None:
    assert stage.left_behind == []
    assert all(runtime.stopped for runtime in stage.runtimes)
    assert all(span.ended_at is not None for span in rollout.trace.spans)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not names & {"model call", "runtime-start", "runtime-stop", "operation"}, names


async def test_cancelled_step_keeps_what_was_generated(stage: Stage) -> None:
    never = asyncio.Event()
    async with ModelServer(Say("first"), Say("second", gate=never)) as model:

        class Twice(ChatHarness):
            async def run(self, exchange: Exchange) -> None:
                await super().run(exchange)
                more = [{"role": "assistant", "content": "first"}, {"role": "user", "content": "go on"}]
                await super().run(structs.replace(exchange, messages=[*exchange.messages, *more]))

        rollout = stage.rollout(model, Twice(), task=Busy())
        await rollout.open()
        step = asyncio.create_task(rollout.step())
        await model.wait_for(2)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await asyncio.wait_for(model.received[1].hung_up.wait(), WAIT_SEC)
    [saved] = stage.tells(TraceSaved)
    trace = loads(zlib.decompress(base64.b64decode(saved.data)))
    assert [call.error.kind if call.error else None for call in trace.calls] == [None, "aborted"]
    assert not trace.ok
    assert trace.rewards == {}


async def test_program_that_works_is_ended_with_all_that_it_started(stage: Stage) -> None:
    command = "sleep 9999 & echo $$ $! > pids.tmp; mv pids.tmp pids; wait"
    rollout = stage.rollout(None, ProgramHarness(command))
    await rollout.open()
    pids = stage.runtimes[0].folder / "pids"
    step = asyncio.create_task(rollout.step())
    await _until_there(pids)
    processes = [int(pid) for pid in pids.read_text().split()]
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists() and not _is_dead(pid)] == []
    assert stage.left_behind == []


async def test_abort_that_is_cancelled_frees_everything_and_passes_the_cancellation_on(stage: Stage) -> None:
    closing, released = asyncio.Event(), asyncio.Event()

    class Slow(ChatHarness):
        async def clean_up(self) -> None:
            closing.set()
            await released.wait()

    rollout = stage.rollout(None, Slow())
    await rollout.open()
    aborting = asyncio.create_task(rollout.abort())
    await closing.wait()
    aborting.cancel()
    asyncio.get_running_loop().call_soon(released.set)
    with pytest.raises(asyncio.CancelledError):
        await aborting
    assert stage.left_behind == []


async def test_cancelled_error_that_a_program_makes_itself_is_no_cancellation(stage: Stage) -> None:
    class Odd(ChatHarness):
        async def run(self, exchange: Exchange) -> None:
            raise asyncio.CancelledError

    rollout = stage.rollout(None, Odd())
    await rollout.open()
    assert await rollout.step() is False
    trace = await rollout.close()
    assert "nobody had cancelled" in trace.errors[0].message


async def _until_there(path: Path) -> None:
    async with asyncio.timeout(WAIT_SEC):
        while not path.exists():
            await asyncio.to_thread(os.sched_yield)


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except FileNotFoundError:
        return True
