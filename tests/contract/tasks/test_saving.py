"""A trace is packed for the ledger when its rollout ends, and others of the runner must not feel it."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
import zlib
from typing import Any

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.rollout import Rollout
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.storage import TraceFormatError, loads
from rollbook.traces.trace import Trace
from rollbook_client.events import Event, TraceSaved
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


async def test_trace_that_cannot_be_written_is_told_by_close_with_everything_freed(stage: Stage) -> None:
    class Keeps(Task[TaskData]):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            deep: list[Any] = []
            for _ in range(5000):
                deep = [deep]
            trace.info["deep"] = deep

    async with ModelServer(Say("42")) as model, asyncio.timeout(WAIT_SEC):
        rollout = stage.rollout(model, task=Keeps())
        await rollout.open()
        await rollout.step()
        with pytest.raises(TraceFormatError):
            await rollout.close()
        assert stage.left_behind == []
        await rollout.abort()
        assert (await rollout.close()).num_turns == 1


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
