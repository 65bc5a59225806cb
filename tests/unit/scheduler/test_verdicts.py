"""Who is to blame when a runner blocks or dies: the execution whose code ran, not the bystanders."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollbook.scheduler.child import OWN_FOLDER, Child, ChildEvents, Running, innermost_frames
from rollbook.scheduler.memory import PLACE_SIZE, Marks, Place
from rollbook.scheduler.pool import Condemned, condemn, verdicts
from rollbook.scheduler.runners import Lost
from rollbook.scheduler.wire import Assignment, Entered, Finished, Staged
from rollbook_client.events import Phase

CLEAN_UP_SEC = 120.0
ENDS_AT = 100.0


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


def put(child: Child, key: int, *, ends_at: float | None = None) -> Running:
    child.running[key] = running = Running(Assignment(key, f"r-{key}", b"{}", "http://x", None, 0.0))
    child._receive(Staged(key, "agent", 1_000, ends_at, "workflow exceeded its 1.0s deadline"))
    return running


def mark(child: Child, key: int, *, phase: Phase = "running", stage: Staged | None = None) -> None:
    """As it stands in the memory while the attempt's code runs."""
    unmark(child)
    child._marks.move(0, Place(key, phase, stage or Staged(key)).packed())


def unmark(child: Child) -> None:
    child._marks.move(child.culprit, bytes(PLACE_SIZE))


async def test_blocked_past_its_deadline_is_condemned_and_told_why(child: Child) -> None:
    put(child, 1, ends_at=ENDS_AT)
    put(child, 2)
    mark(child, 1)
    verdict = condemn(child, 5.0, ENDS_AT + 2.5, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert verdict.key == 1
    assert verdict.report.err_category == "timeout"
    assert "workflow exceeded its 1.0s deadline: it blocked its runner's event loop" in (
        verdict.report.err_message or ""
    )
    ((stage, began_at, ended_at),) = [(span.stage, span.started_at, span.ended_at) for span in verdict.report.spans]
    assert (stage, began_at) == ("agent", 1_000)
    assert ended_at > began_at


async def test_bystander_past_its_deadline_does_not_condemn_the_runner(child: Child) -> None:
    put(child, 1, ends_at=ENDS_AT)
    put(child, 2)
    mark(child, 2)
    assert condemn(child, 5.0, ENDS_AT + 2.5, clean_up_sec=CLEAN_UP_SEC) is None


async def test_within_its_grace_nobody_is_condemned(child: Child) -> None:
    put(child, 1, ends_at=ENDS_AT)
    mark(child, 1)
    assert condemn(child, 5.0, ENDS_AT + 1.0, clean_up_sec=CLEAN_UP_SEC) is None


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
    mark(child, 1, phase="grading")
    child.tell_what_blocks()
    assert told == [(1, "running"), (1, "grading")]
    child._receive(Entered(1, "running"))
    child._receive(Entered(1, "grading"))
    assert told == [(1, "running"), (1, "grading")]


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


async def test_what_blocks_is_judged_by_the_stage_it_is_in_though_nobody_told_of_it(child: Child) -> None:
    put(child, 1)
    put(child, 2)
    stage = Staged(1, "scoring", 7, ENDS_AT, "scoring exceeded its 1.0s deadline")
    mark(child, 1, phase="grading", stage=stage)
    child.tell_what_blocks()
    assert child.running[1].stage == stage
    verdict = condemn(child, 5.0, ENDS_AT + 2.5, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert (verdict.report.err_message or "").startswith("scoring exceeded its 1.0s deadline: it blocked")
    assert [span.stage for span in verdict.report.spans] == ["scoring"]


async def test_deadline_of_a_stage_that_is_over_condemns_nobody(child: Child) -> None:
    put(child, 1, ends_at=ENDS_AT)
    mark(child, 1, stage=Staged(1, "setup", 7))
    child.tell_what_blocks()
    assert condemn(child, 5.0, ENDS_AT + 1_000.0, clean_up_sec=CLEAN_UP_SEC) is None
    child.running[1].cancelled_at = ENDS_AT
    verdict = condemn(child, 5.0, ENDS_AT + 2.5, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert verdict.report.status == "cancelled"


async def test_what_is_between_two_stages_has_no_span(child: Child) -> None:
    put(child, 1).cancelled_at = ENDS_AT
    mark(child, 1)
    child.tell_what_blocks()
    verdict = condemn(child, 5.0, ENDS_AT + 2.5, clean_up_sec=CLEAN_UP_SEC)
    assert verdict is not None
    assert verdict.report.spans == ()


def test_place_with_long_texts_is_cut_to_its_size() -> None:
    marks = Marks.create()
    place = Place(3, "running", Staged(3, "é" * 40, 5, None, "ü" * 400))
    marks.move(0, place.packed())
    found = marks.place
    marks.close()
    assert len(place.packed()) == PLACE_SIZE
    assert found is not None
    assert (found.key, found.phase, found.stage.began_at, found.stage.ends_at) == (3, "running", 5, None)
    assert found.stage.name == "é" * 15
    assert set(found.stage.late) == {"ü"}


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
