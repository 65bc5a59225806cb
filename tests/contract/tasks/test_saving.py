"""A trace is packed for the ledger when its rollout ends, and others of the runner must not feel it."""

from __future__ import annotations

import asyncio
import base64
import math
import random
import threading
import zlib
from typing import Any

import pytest

from rollbook.scheduler.records import packed
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.saving import SAVED_MAX_BYTES
from rollbook.tasks.task import Task
from rollbook.traces.cutting import CUT
from rollbook.traces.storage import loads
from rollbook.traces.trace import Trace
from rollbook_client.events import Event, RewardRecorded, TraceSaved
from tests.contract.tasks.playing import WAIT_SEC, Acting, Agent, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say

LONG = random.Random(1).randbytes(1_000_000).hex()


async def test_large_trace_is_compressed_beside_the_event_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for one of ten megabytes, in which no model call of any rollout would go on."""
    compress, threads = zlib.compress, []

    def watched(data: bytes, level: int) -> bytes:
        threads.append(threading.current_thread())
        return compress(data, level)

    monkeypatch.setattr(zlib, "compress", watched)

    async def play(agent: Agent) -> None:
        await agent.ask({"role": "user", "content": LONG})

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play)))
    assert trace.ok
    assert threading.main_thread() not in threads
    [saved] = stage.tells(TraceSaved)
    assert stage.told[-1] is saved
    assert loads(zlib.decompress(base64.b64decode(saved.data))) == trace


async def test_listener_that_raises_costs_nothing_but_what_it_was_told(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Rewarded(Task[TaskData]):
        @reward
        def one(self) -> float:
            return 1.0

    def tell(event: Event) -> None:
        raise OSError(f"no room for {event.TYPE}")

    async with ModelServer(Say("42")) as model:
        rollout = Rollout(
            Rewarded(),
            TaskData(id="t-1", prompt="Hello"),
            Acting(ask_once),
            stage.runtime,
            chat_completions_url=f"{model.url}/chat/completions",
            endpoint=stage.endpoint,
            tell=tell,
        )
        async with asyncio.timeout(WAIT_SEC):
            trace = await played(rollout)
    assert trace.errors == []
    assert (trace.ok, trace.num_turns, trace.rewards) == (True, 1, {"one": 1.0})
    assert stage.left_behind == []
    for kind in ("stage_timed", "model_called", "reward_recorded", "trace_saved"):
        assert f"no room for {kind}" in caplog.text


async def test_what_a_task_puts_into_its_trace_costs_neither_trace_nor_rollout(stage: Stage) -> None:
    class Keeps(Task[TaskData]):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            deep: list[Any] = []
            for _ in range(5000):
                deep = [deep]
            trace.info |= {"deep": deep, "self": trace.info, "fine": 1}

    async with ModelServer(Say("42")) as model, asyncio.timeout(WAIT_SEC):
        trace = await played(stage.rollout(model, task=Keeps()))
    assert trace.ok
    assert stage.left_behind == []
    read = saved(stage)
    assert read.info["self"] == "<a dict that holds itself>"
    assert read.info["fine"] == 1
    assert (read.ok, read.num_turns) == (True, 1)


async def test_score_that_a_task_puts_into_its_trace_is_null_where_it_is_no_number(stage: Stage) -> None:
    class Puts(Task[TaskData]):
        @reward
        def fine(self, trace: Trace) -> float:
            trace.rewards["odd"] = math.nan
            return 1.0

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, task=Puts()))
    assert trace.rewards == {"fine": 1.0, "odd": None}
    [error] = trace.errors
    assert error.message == "rewards['odd'] of the trace is nan; put a finite number there"
    assert (error.stage, error.category, trace.ok) == ("scoring", "validation_error", False)
    assert {told.name: told.value for told in stage.tells(RewardRecorded)} == {"fine": 1.0, "odd": None}
    assert saved(stage) == trace


async def test_trace_that_is_too_large_for_the_ledger_is_saved_cut_and_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollbook.tasks.saving.SAVED_MAX_BYTES", 100_000)

    async def play(agent: Agent) -> None:
        await agent.ask({"role": "user", "content": LONG})

    async with ModelServer(Say("42")) as model:
        trace = await played(stage.rollout(model, Acting(play)))
    read = saved(stage)
    assert len(stage.tells(TraceSaved)[0].data) <= 100_000
    assert "texts at 10000 characters: the whole trace takes " in read.info[CUT]
    assert (read.ok, read.num_turns, read.nodes[2].message["content"]) == (True, 1, "42")
    assert trace.nodes[1].message["content"] == LONG
    assert f"rollout t-1: its trace is saved {read.info[CUT]}" in caplog.text


def test_trace_that_is_not_cut_fits_into_an_event() -> None:
    event = TraceSaved(attempt=1, version=1, size_bytes=1, data="x" * SAVED_MAX_BYTES)
    packed(event)


def saved(stage: Stage) -> Trace:
    """The trace as the ledger has it."""
    [event] = stage.tells(TraceSaved)
    return loads(zlib.decompress(base64.b64decode(event.data)))


async def test_cancelled_close_has_saved_a_large_trace(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    compress, begun, released = zlib.compress, threading.Event(), threading.Event()

    def slow(data: bytes, level: int) -> bytes:
        begun.set()
        assert released.wait(WAIT_SEC)
        return compress(data, level)

    monkeypatch.setattr(zlib, "compress", slow)

    async def play(agent: Agent) -> None:
        await agent.ask({"role": "user", "content": LONG})

    async with ModelServer(Say("42")) as model:
        rollout = stage.rollout(model, Acting(play))
        await rollout.open()
        await rollout.step()
        closing = asyncio.create_task(rollout.close())
        await asyncio.to_thread(begun.wait, WAIT_SEC)
        closing.cancel()
        await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert len(stage.tells(TraceSaved)) == 1
    assert stage.left_behind == []
