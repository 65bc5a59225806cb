"""A rollout whose close is cancelled is not ok, in the trace that is kept of it either."""

from __future__ import annotations

import asyncio
import base64
import zlib

import pytest

from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.runtimes.base import Runtime
from rollbook.tasks.task import Task
from rollbook.traces.storage import loads
from rollbook.traces.trace import Trace
from rollbook_client.events import TraceSaved
from tests.contract.tasks.playing import WAIT_SEC, Stage
from tests.support.model_server import ModelServer, Say


@pytest.mark.parametrize("at", ["finalize", "scoring"])
async def test_rollout_that_is_cancelled_while_it_closes_is_not_ok(stage: Stage, at: str) -> None:
    there = asyncio.Event()

    async def wait_in(stage_name: str) -> None:
        if stage_name == at:
            there.set()
            await asyncio.Event().wait()

    class Waits(Task[TaskData]):
        async def finalize(self, data: TaskData, runtime: Runtime, trace: Trace) -> None:
            await wait_in("finalize")

        @reward
        async def right(self) -> float:
            await wait_in("scoring")
            return 1.0

    async with ModelServer(default=Say("42")) as model:
        rollout = stage.rollout(model, task=Waits())
        assert await rollout.open()
        assert await rollout.step()
        closing = asyncio.create_task(rollout.close())
        await asyncio.wait_for(there.wait(), WAIT_SEC)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert not rollout.trace.ok
    [saved] = stage.tells(TraceSaved)
    kept = loads(zlib.decompress(base64.b64decode(saved.data)))
    assert not kept.ok
    assert kept.num_turns == 1
    assert kept.reward is None
    assert stage.left_behind == []
