"""The tables at the end, from results and from a ledger's file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from rich.console import RenderableType

from rollbook.cli.demo import report
from rollbook.cli.demo.batch import Graded, Tally, rollout_id
from rollbook.cli.demo.example import Row
from rollbook.cli.demo.screen import PlainBar, Screen
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from rollbook_client import RolloutResultResponse, RolloutSample, RolloutStatus


def graded(*rewards: float | None) -> Graded:
    row = Row("You multiply.", "What is 7 × 8?", "56")
    results = tuple(
        RolloutResultResponse(
            rollout_id=rollout_id(1, attempt),
            status=RolloutStatus.FAILURE if reward is None else RolloutStatus.SUCCESS,
            sample=None if reward is None else RolloutSample(reward=reward),
        )
        for attempt, reward in enumerate(rewards, start=1)
    )
    return Graded(row, results)


def shown(part: RenderableType, capture: pytest.CaptureFixture[str]) -> list[list[str]]:
    Screen().put(part)
    return [line.split() for line in capture.readouterr().out.splitlines() if line.strip()]


def test_rewards_are_shown_attempt_by_attempt_with_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(report.rewards_table([graded(1.0, 0.0, 1.0, 1.0), graded(0.0, 0.0, 0.0, 0.0)]), capsys)
    assert ["1", "7", "×", "8", "56", "1", "0", "1", "1", "0.75"] in lines
    assert ["2", "7", "×", "8", "56", "0", "0", "0", "0", "0.00"] in lines
    assert lines[-1] == ["all", "0.38"]


def test_missing_reward_is_a_dash_and_no_zero(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(report.rewards_table([graded(1.0, None), graded(None, None)]), capsys)
    assert ["1", "7", "×", "8", "56", "1", "–", "1.00"] in lines
    assert ["2", "7", "×", "8", "56", "–", "–", "–"] in lines
    assert lines[-1] == ["all", "1.00"]


@pytest.mark.parametrize("share, expected", [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.95, 4.0), (1.0, 4.0)])
def test_percentile_is_the_smallest_value_that_covers_the_share(share: float, expected: float) -> None:
    assert report.percentile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_told_rollout_is_one_that_went_wrong_if_there_is_one() -> None:
    assert report.instructive([graded(1.0, 1.0), graded(1.0, 0.0)]) == "row-02-attempt-2"
    assert report.instructive([graded(1.0, None), graded(0.0)]) == "row-01-attempt-2"
    assert report.instructive([graded(1.0, 1.0)]) == "row-01-attempt-1"


def test_queries_run_on_a_ledger_as_they_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger.sqlite3"
    upgrade(parse_url(f"sqlite:///{path}"))
    with contextlib.closing(report.open_ledger(path)) as db:
        headers = [shown(report.query_table(db, query), capsys)[0] for _, query in report.queries([graded(1.0)])]
        assert report.count_events(db) == 0
    assert headers == [["truth", "correct", "wrong"], ["seq", "at", "type", "detail"]]


def test_lines_are_plain_and_never_wrapped_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "/a/very/long/path" * 20
    Screen().put(f"[bold]{long}[/bold]")
    assert capsys.readouterr().out == f"{long}\n"


def test_bar_without_a_terminal_is_a_line_for_each_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    bar = PlainBar()
    for done in (0, 0, 3, 10, 11, 30, 39, 40, 40):
        bar.show(Tally(total=40, queued=40 - done))
    assert capsys.readouterr().out.splitlines() == [
        "  10 of 40 rollouts are done",
        "  30 of 40 rollouts are done",
        "  40 of 40 rollouts are done",
    ]


def test_what_is_neither_queued_nor_running_nor_grading_is_done() -> None:
    assert Tally(total=10, queued=1, running=2, grading=3).done == 4
