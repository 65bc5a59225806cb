"""A trace is packed for the ledger when its rollout ends, and others of the runner must not feel it."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
import zlib

import pytest

from rollbook.traces.storage import loads
from rollbook_client.events import TraceSaved
from tests.contract.tasks.playing import WAIT_SEC, Acting, Agent, Stage, played
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
