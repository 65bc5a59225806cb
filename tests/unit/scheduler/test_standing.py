"""Where an execution stands: in the shared memory at once, in a message a little later."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from rollbook.backends.base import ExecutionRequest
from rollbook.scheduler.memory import Marks, Place
from rollbook.scheduler.runner.standing import Standing
from rollbook.scheduler.wire import Entered, Staged
from rollbook.sdk.span import Stage
from tests.unit.scheduler.test_executor import Inbox

SETUP = Stage(name="setup", began_at=1_000, ends_at=5.0, late="the set-up is late")
KEY = 7


class Told:
    """An execution's standing, what it says, and the place in the memory while the execution's code runs."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.marks = Marks.create()
        self.standing = Standing(KEY, emit=self.inbox.put, on_move=self.marks.move)
        self.marks.move(0, self.standing.where.packed)

    @property
    def place(self) -> Place:
        place = self.marks.place
        assert place is not None
        return place


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    made = Told()
    yield made
    made.standing.end()
    made.marks.close()


def request(**budgets: float) -> ExecutionRequest:
    return msgspec.convert({"id": "r", "prompt": [], **budgets}, ExecutionRequest)


async def test_a_stage_is_marked_at_once_and_told_soon(told: Told) -> None:
    told.standing.enter("running")
    told.standing.enter_stage(SETUP)
    staged = Staged(KEY, "setup", 1_000, 5.0, "the set-up is late")
    assert (told.place.phase, told.place.stage) == ("running", staged)
    assert told.inbox.messages == []
    await told.inbox.until(lambda: len(told.inbox.messages) == 2)
    assert told.inbox.messages == [Entered(KEY, "running"), staged]


async def test_of_several_stages_at_once_the_last_is_told(told: Told) -> None:
    for stage in (SETUP, None, Stage(name="agent", began_at=2_000)):
        told.standing.enter_stage(stage)
    told.standing.tell()
    assert told.inbox.messages == [Staged(KEY, "agent", 2_000)]


async def test_next_step_of_a_stage_goes_on_from_its_begin(told: Told) -> None:
    told.standing.enter_stage(SETUP)
    told.standing.enter_stage(None)
    told.standing.enter_stage(Stage(name="setup", began_at=3_000))
    assert told.place.stage == Staged(KEY, "setup", 1_000)


async def test_a_stage_that_is_over_leaves_no_deadline(told: Told) -> None:
    told.standing.begin(request(agent_timeout_sec=9.0))
    told.standing.enter_stage(SETUP)
    told.standing.enter_stage(None)
    assert told.place.stage == Staged(KEY)


async def test_requests_budgets_hold_where_a_backend_tells_of_no_stage(told: Told) -> None:
    before = time.monotonic()
    told.standing.begin(request(agent_timeout_sec=100.0, grader_timeout_sec=7.0, queued_sec=40.0))
    agent = told.place.stage
    assert agent.name == "agent"
    assert agent.late == "workflow exceeded its 100.0s deadline (40.0s of it queued)"
    assert agent.ends_at is not None
    assert before + 60.0 <= agent.ends_at <= time.monotonic() + 60.0
    told.standing.enter("grading")
    assert told.place.phase == "grading"
    grader = told.place.stage
    assert (grader.name, grader.late) == ("grading", "grader exceeded its 7.0s deadline")
    assert grader.ends_at is not None
    assert before + 7.0 <= grader.ends_at <= time.monotonic() + 7.0


async def test_a_grader_without_a_budget_has_no_deadline(told: Told) -> None:
    told.standing.begin(request(agent_timeout_sec=1.0))
    told.standing.enter("grading")
    assert told.place.stage.ends_at is None


async def test_requests_budgets_end_with_the_first_stage_that_a_backend_tells_of(told: Told) -> None:
    told.standing.begin(request(agent_timeout_sec=1.0, grader_timeout_sec=1.0))
    told.standing.enter_stage(Stage(name="setup", began_at=1_000))
    assert told.place.stage.ends_at is None
    told.standing.enter("grading")
    assert told.place.stage == Staged(KEY, "setup", 1_000)


async def test_place_is_not_marked_while_another_ones_code_runs(told: Told) -> None:
    other = Place(8, "running", Staged(8))
    told.marks.move(KEY, other.packed())
    told.standing.enter_stage(SETUP)
    assert told.place == other
