"""How a runner process ends: what it had sent still counts, and what it had started ends with it."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rollbook.scheduler.child import Child, ChildEvents
from rollbook.scheduler.records import unpacked
from rollbook.scheduler.wire import Assignment, Finished, Recorded
from rollbook_client.events import Event, ExchangeStopped

FLOW = """
import asyncio, os, subprocess, sys, threading
from pathlib import Path
from rollbook import AgentWorkflow, AgentWorkflowConfig, get_rollout_context
from rollbook_client.events import ExchangeStopped

class Flow(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx):
        match ctx.metadata:
            case {"say": size}:
                return [{"role": "assistant", "content": "x" * size}]
            case {"record": count}:
                for number in range(count):
                    get_rollout_context().record(ExchangeStopped(attempt=0, condition=str(number)))
                    await asyncio.sleep(0)
                return []
            case {"thread": _}:
                threading.Thread(target=threading.Event().wait).start()
                return []
            case {"leave": pipe}:
                subprocess.Popen([sys.executable, "-c", f"open({pipe!r}, 'w').close(); import time; time.sleep(600)"])
            case {"die": code}:
                for _ in range(100):  # turns of the loop, in which the others end and report
                    await asyncio.sleep(0)
                os._exit(code)
        await asyncio.Event().wait()
"""


class Runner:
    """A runner process of `FLOW`, and what it reported."""

    def __init__(self, flow: Path) -> None:
        self.finished: list[Finished] = []
        self.recorded: list[Event] = []
        self.ready = asyncio.Event()
        self.reported = asyncio.Event()
        self.died = asyncio.Event()
        events = ChildEvents(
            lambda _: self.ready.set(),
            pytest.fail,
            lambda _key, _phase: None,
            self._note,
            self._report,
            lambda _: self.died.set(),
        )
        self.child = Child(str(flow), events, max_concurrent=None, memory=None)

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid

    def _note(self, message: Recorded) -> None:
        assert message.key not in {report.key for report in self.finished}
        self.recorded += [unpacked(record) for record in message.records]

    def _report(self, report: Finished) -> None:
        self.finished.append(report)
        self.reported.set()

    def assign(self, key: int, **metadata: object) -> None:
        request = msgspec.json.encode({"initial_messages": [], "grade": False, "metadata": metadata})
        self.child.run(Assignment(key, f"r-{key}", request, "http://chat.example/", None, 0.0))

    async def end(self) -> None:
        async with asyncio.timeout(30):
            await self.died.wait()


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[Runner]:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    runner = Runner(flow)
    await runner.child.start()
    async with asyncio.timeout(30):
        await runner.ready.wait()
    yield runner
    await runner.child.kill()
    runner.child.close()


async def test_records_arrive_in_their_order_before_the_end(runner: Runner) -> None:
    runner.assign(1, record=1_000)
    async with asyncio.timeout(30):
        await runner.reported.wait()
    assert runner.finished[0].status == "success"
    assert runner.recorded == [ExchangeStopped(attempt=0, condition=str(number)) for number in range(1_000)]


async def test_results_sent_before_the_death_count(runner: Runner) -> None:
    for key in range(1, 10):
        runner.assign(key, say=20_000)
    runner.assign(10, die=9)
    # This loop stands still until the runner is dead: its end and its results then come at once.
    os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
    await runner.end()
    assert sorted(report.key for report in runner.finished) == list(range(1, 10))
    assert list(runner.child.running) == [10]
    assert runner.child.death() == "exited with code 9"


@pytest.mark.parametrize("how", ["killed", "by itself"])
async def test_processes_that_user_code_left_behind_end_too(runner: Runner, tmp_path: Path, how: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    runner.assign(1, leave=str(fifo))
    with await asyncio.to_thread(fifo.open):  # opens once the process that was left opens its end
        (left,) = [pid for pid in _processes() if pid != runner.pid and _group(pid) == runner.pid]
    with os.fdopen(os.pidfd_open(left), "rb") as alive:
        if how == "killed":
            await runner.child.kill()
        else:
            runner.assign(2, die=0)
        await runner.end()
        ended, _, _ = select.select([alive], [], [], 30)
        assert ended


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


async def test_thread_that_user_code_left_behind_does_not_hold_up_the_shutdown(runner: Runner) -> None:
    runner.assign(1, thread=True)
    async with asyncio.timeout(30):
        await runner.reported.wait()
        await runner.child.shut_down(600, leftover_sec=0.2)
    assert [report.status for report in runner.finished] == ["success"]
    assert runner.died.is_set()
