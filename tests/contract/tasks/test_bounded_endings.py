"""A harness that does not come back from its endings holds up neither the trajectory nor what comes after it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rollbook.tasks import rollout as rollouts
from rollbook.tasks.data import TaskData
from rollbook.tasks.hooks import reward
from rollbook.tasks.task import Task
from tests.contract.tasks.playing import WAIT_SEC, Acting, Stage, ask_once, played
from tests.support.model_server import ModelServer, Say


class Rewarded(Task[TaskData]):
    """Has a reward."""

    @reward
    def one(self) -> float:
        return 1.0


class Stuck(Acting):
    """Never comes back from one of its endings."""

    def __init__(self, at: str) -> None:
        super().__init__(ask_once)
        self.at = at

    async def close(self) -> None:
        if self.at == "close":
            await asyncio.Event().wait()

    async def clean_up(self) -> None:
        if self.at == "clean-up":
            await asyncio.Event().wait()


@pytest.mark.parametrize("at", ["close", "clean-up"])
async def test_harness_that_does_not_come_back_is_left_with_a_warning(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    monkeypatch.setattr(rollouts, "CLEAN_UP_SEC", 0.05)
    async with ModelServer(default=Say("42")) as model:
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(WAIT_SEC):
                trace = await played(stage.rollout(model, Stuck(at), task=Rewarded()))
    assert trace.ok
    assert trace.errors == []
    assert trace.rewards == {"one": 1.0}
    assert "exceeded its 0.05s deadline" in caplog.text
    assert stage.left_behind == []
