"""Who is to blame when a runner blocks or dies: the execution whose code ran, not the bystanders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rollbook.scheduler.child import OWN_FOLDER, Child, ChildEvents, Running, innermost_frames
from rollbook.scheduler.memory import CURRENT, CURRENT_OFFSET
from rollbook.scheduler.pool import Condemned, condemn, verdicts
from rollbook.scheduler.runners import Deadline, Lost
from rollbook.scheduler.wire import Assignment, Entered, Finished
from rollbook_client.events import Phase

CLEAN_UP_SEC = 120.0
NO_DEADLINE = Deadline(None, None, None)


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    def nothing(*_: object) -> None:
        return None

    made = Child("x.py", ChildEvents(*[nothing] * 6), max_concurrent=None, memory=None)
    yield made
    made.close()


@pytest.fixture
def told(child: Child) -> list[tuple[int, Phase]]:
    told: list[tuple[int, Phase]] = []
    child._events.entered = lambda key, phase: told.append((key, phase))
    return told


def put(child: Child, key: int, *, agent_sec: float | None = None) -> Running:
    assignment = Assignment(key, f"r-{key}", b"{}", "http://x", None, 0.0)
    deadline = Deadline(agent_sec, agent_sec, None)
    running = Running(assignment, deadline, asyncio.get_running_loop().time())
    child.running[key] = running
    return running


def mark(child: Child, key: int) -> None:
    CURRENT.pack_into(child._marks.memory, CURRENT_OFFSET, key)


async def test_blocked_past_its_deadline_is_condemned_and_told_why(child: Child) -> None:
    now = put(child, 1, agent_sec=1.0).ends_at or 0.0
    put(child, 2)
    mark(child, 1)
    verdict = condemn(child, 5.0, now + 2.5, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert verdict.key == 1
    assert verdict.report.err_category == "timeout"
    assert "workflow exceeded its 1.0s deadline" in (verdict.report.err_message or "")


async def test_bystander_past_its_deadline_does_not_condemn_the_runner(child: Child) -> None:
    now = put(child, 1, agent_sec=1.0).ends_at or 0.0
    put(child, 2)
    mark(child, 2)
    assert condemn(child, 5.0, now + 2.5, clean_up_sec=CLEAN_UP_SEC) is None


async def test_within_its_grace_nobody_is_condemned(child: Child) -> None:
    now = put(child, 1, agent_sec=1.0).ends_at or 0.0
    mark(child, 1)
    assert condemn(child, 5.0, now + 1.0, clean_up_sec=CLEAN_UP_SEC) is None


async def test_a_cancelled_execution_that_blocks_ends_as_cancelled(child: Child) -> None:
    running = put(child, 1)
    running.cancelled_at = 10.0
    mark(child, 1)
    verdict = condemn(child, 5.0, 13.0, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert verdict.report.status == "cancelled"


async def test_ignoring_a_cancellation_is_borne_only_as_long_as_clean_up_may_take(child: Child) -> None:
    running = put(child, 1)
    running.cancelled_at = 10.0
    assert condemn(child, 0.0, 10.0 + CLEAN_UP_SEC - 1, clean_up_sec=CLEAN_UP_SEC) is None
    assert condemn(child, 0.0, 10.0 + CLEAN_UP_SEC + 1, clean_up_sec=CLEAN_UP_SEC) is not None


async def test_only_the_attempt_whose_code_killed_the_runner_counts(child: Child) -> None:
    put(child, 1)
    put(child, 2)
    mark(child, 2)
    ended = {loss.key: loss for loss in verdicts(child, None) if isinstance(loss, Lost)}
    assert not ended[2].released
    assert "while it ran this rollout's code" in ended[2].reason
    assert ended[1].released


async def test_without_a_culprit_every_attempt_counts(child: Child) -> None:
    put(child, 1)
    put(child, 2)
    assert [loss.released for loss in verdicts(child, None) if isinstance(loss, Lost)] == [False, False]


async def test_the_condemned_gets_its_report_and_the_others_go_back(child: Child) -> None:
    put(child, 1)
    put(child, 2)
    report = Finished(1, "failure", err_category="timeout")
    ended = verdicts(child, Condemned(1, report))
    assert report in ended
    assert [loss.key for loss in ended if isinstance(loss, Lost) and loss.released] == [2]


async def test_phases_of_what_blocks_are_told_once_though_its_reports_wait(
    child: Child, told: list[tuple[int, Phase]]
) -> None:
    put(child, 1)
    put(child, 2)
    mark(child, 1)
    child.tell_what_blocks()
    child.tell_what_blocks()
    assert told == [(1, "running")]
    child._marks.enter_grading(1)
    child.tell_what_blocks()
    assert told == [(1, "running"), (1, "grading")]
    child._receive(Entered(1, "running"))
    child._receive(Entered(1, "grading"))
    assert told == [(1, "running"), (1, "grading")]
    assert child.running[1].phase == "grading"


async def test_phases_that_were_told_are_not_recorded_again_at_the_end(
    child: Child, told: list[tuple[int, Phase]]
) -> None:
    ended: list[Finished] = []
    child._events.finished = ended.append
    put(child, 1)
    mark(child, 1)
    child.tell_what_blocks()
    child._receive(Finished(1, "success", phases=("running", "grading")))
    assert [report.phases for report in ended] == [("grading",)]


async def test_blocking_grader_is_judged_by_its_own_budget(child: Child, told: list[tuple[int, Phase]]) -> None:
    running = put(child, 1)
    running.deadline = Deadline(None, None, 1.0)
    mark(child, 1)
    child._marks.enter_grading(1)
    child.tell_what_blocks()
    verdict = condemn(child, 5.0, child.pulsed_at + 4.0, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert "grader exceeded its 1.0s deadline" in (verdict.report.err_message or "")


async def test_a_grader_has_its_own_budget(child: Child) -> None:
    running = Running(Assignment(1, "r", b"", "", None, 0.0), Deadline(1.0, 1.0, 9.0), 100.0)
    running.enter("grading", 150.0)
    assert running.ends_at == 159.0
    running = Running(Assignment(1, "r", b"", "", None, 0.0), Deadline(1.0, 1.0, None), 100.0)
    running.enter("grading", 150.0)
    assert running.ends_at is None


def test_the_innermost_frames_of_the_main_thread_are_named() -> None:
    stacks = """Timeout (0:00:01)!
Thread 0x00007f (most recent call first):
  File "/lib/threading.py", line 1 in wait

Thread 0x00008f (most recent call first):
  File "OWN/scheduler/runner/logs.py", line 60 in write
  File "/srv/flows/flow.py", line 12 in run
  File "/srv/flows/tools.py", line 37 in call
  File "OWN/backends/stage.py", line 37 in run_stage
  File "/lib/base_events.py", line 1 in run
""".replace("OWN", OWN_FOLDER)
    assert (
        innermost_frames(stacks)
        == "/srv/flows/flow.py, line 12 in run; called from /srv/flows/tools.py, line 37 in call"
    )
    assert innermost_frames("") == ""
