"""What a rollout's context is told of its stages, so that somebody outside can end one that blocks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rollbook.backends.failures import Failure
from rollbook.backends.stage import StageError, run_stage
from rollbook.sdk.context import GraderContext, RolloutContext
from rollbook.sdk.span import Stage
from rollbook_client.statuses import RolloutErrorCategory
from tests.unit.backends.support import make_backend, make_request, replying


class Listening(RolloutContext):
    """A context that keeps what it was told of stages."""

    def __init__(self) -> None:
        self.told: list[Stage | None] = []
        super().__init__("http://chat.example", rollout_id="r", on_stage=self.told.append)

    @property
    def began(self) -> list[Stage]:
        return [stage for stage in self.told if stage is not None]


async def nothing() -> None:
    return None


async def failing() -> None:
    raise ValueError("broken")


async def test_workflow_and_grader_are_told_with_their_deadlines() -> None:
    async def grade(ctx: GraderContext) -> Any:
        ctx.set_reward(1.0)

    before = time.monotonic()
    with Listening() as listening:
        await make_backend(replying, grade).execute(make_request(agent_timeout_sec=50.0, grader_timeout_sec=7.0))
    agent, grading = listening.began
    assert listening.told == [agent, None, grading, None]
    assert (agent.name, agent.late) == ("agent", "workflow exceeded its 50.0s deadline")
    assert (grading.name, grading.late) == ("grading", "grader exceeded its 7.0s deadline")
    assert agent.ends_at is not None
    assert grading.ends_at is not None
    assert before + 50.0 <= agent.ends_at <= time.monotonic() + 50.0
    assert grading.ends_at <= time.monotonic() + 7.0


async def test_a_stage_without_a_limit_is_told_without_a_deadline() -> None:
    with Listening() as listening:
        await run_stage(nothing, "x", limit_sec=None, name="agent")
    assert [(stage.name, stage.ends_at) for stage in listening.began] == [("agent", None)]


async def test_the_end_of_a_stage_that_fails_is_told() -> None:
    with Listening() as listening, pytest.raises(StageError):
        await run_stage(failing, "x", limit_sec=5.0, name="agent")
    assert listening.told[-1] is None


async def test_a_stage_inside_another_is_not_told() -> None:
    async def outer() -> None:
        await run_stage(nothing, "inner", limit_sec=1.0, name="inner")

    with Listening() as listening:
        await run_stage(outer, "outer", limit_sec=None, name="outer")
        await run_stage(nothing, "next", limit_sec=None, name="next")
    assert [stage.name for stage in listening.began] == ["outer", "next"]


async def test_a_message_of_its_own_is_told_and_raised() -> None:
    with Listening() as listening:
        await run_stage(nothing, "x", limit_sec=5.0, late="the set-up is late")
        with pytest.raises(StageError) as caught:
            await run_stage(nothing, "x", limit_sec=0.0, late="the set-up is late")
    assert [stage.late for stage in listening.began] == ["the set-up is late"]
    assert caught.value.failure == Failure("the set-up is late", RolloutErrorCategory.TIMEOUT)
