"""Scoring a rollout anew after its end: what it adds, what it leaves alone, and when it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.archives.moving import archive
from rollbook.ledger.audit import audit
from rollbook.ledger.database import database_of
from rollbook.ledger.files import FileRefused
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.listing import rollout_view
from rollbook.ledger.past import Moment, rollout_then
from rollbook.ledger.refusals import CommandFailed, RolloutArchived, StillActive, UnknownRollout
from rollbook.ledger.replay import verify_replay
from rollbook.ledger.urls import parse_url
from rollbook_client import events as ev
from tests.contract.ledger.archives import events, filed
from tests.support.ledger import (
    Writing,
    admit,
    api,
    claim,
    close,
    event_types,
    finish,
    poll,
    record,
    rescore,
    scheduler,
)
from tests.support.sql import rows

SCORES = (cmd.Score("exact", 0.25), cmd.Score("style", None), cmd.Score("length", 3.0))
WEIGHTS = {"exact": 2.0, "style": 1.0}
VIEWED = ("reward_outcomes", "rollout_summary", "rollout_reports")
ONE = "SELECT reward, rewards, metrics, scoring FROM rollout_reports WHERE rollout_id = 'r-1'"


@pytest.fixture
def over(writer: Writing) -> Writing:
    """r-1 succeeded with the rewards it recorded itself."""
    writer.batch(scheduler(), admit())
    writer.do(claim())
    exact = ev.RewardRecorded(attempt=0, name="exact", value=1.0)
    writer.batch(record(exact, ev.MetricRecorded(attempt=0, name="length", value=3.0)), finish(rewards=()))
    return writer


def assert_sound(database_url: str) -> None:
    assert (audit(database_url), verify_replay(database_url)) == ([], [])


def test_scorings_are_numbered_within_a_batch_and_beyond(over: Writing, database_url: str) -> None:
    assert over.batch(rescore(), rescore()) == [1, 2]
    assert over.do(rescore(scores=())) == 3
    found = rows(database_url, "SELECT scoring, kind, name, value FROM scores ORDER BY position")
    assert found == [
        (0, "reward", "exact", 1.0),
        (0, "metric", "length", 3.0),
        *((scoring, *score) for scoring in (1, 2) for score in (("reward", "exact", 0.5), ("metric", "length", 3.0))),
    ]
    assert event_types(database_url, "r-1")[-1] == "scores_revised"
    assert_sound(database_url)


def test_scorings_of_rollouts_are_numbered_apart(over: Writing) -> None:
    over.do(admit("r-2"))
    over.do(claim())
    over.do(finish("r-2"))
    assert over.batch(rescore(), rescore("r-2"), rescore(), rescore("r-2")) == [1, 1, 2, 2]


def test_last_scoring_is_what_is_shown(over: Writing, database_url: str) -> None:
    assert rows(database_url, ONE) == [(1.0, '{"exact": 1.0}', '{"length": 3.0}', 0)]
    over.do(rescore(scores=SCORES, weights=WEIGHTS, reward=0.5))
    assert rows(database_url, ONE) == [(0.5, '{"exact": 0.25, "style": null}', '{"length": 3.0}', 1)]
    for name in ("rollout_summary", "reward_outcomes"):
        assert rows(database_url, f"SELECT reward FROM {name}") == [(0.5,)]
    over.do(rescore(scores=(), reward=None))
    assert rows(database_url, ONE) == [(None, None, None, 2)]


async def test_result_and_status_stay_as_they_were(over: Writing, ledger: Ledger) -> None:
    before = await ledger.submit(poll())
    result = await ledger.reader.result(before)
    over.do(rescore())
    after = await ledger.submit(poll())
    assert (after.status, after.finished_at, after.changed_at) == (before.status, before.finished_at, before.changed_at)
    assert await ledger.reader.result(after) == result
    view = await rollout_view(ledger.reader, after.number)
    assert view is not None
    assert (view.reward, view.status) == (0.5, "success")


def test_ledger_of_an_earlier_moment_shows_the_earlier_scoring(over: Writing, database_url: str) -> None:
    ((before,),) = rows(database_url, "SELECT max(position) FROM events")
    over.do(rescore())
    over.do(rescore(scores=(cmd.Score("exact", 0.75),)))
    shown = [rollout_then(database_url, "r-1", Moment(position=before + i)).view.reward for i in (0, 3, 5)]
    assert shown == [1.0, 0.5, 0.75]


@pytest.mark.parametrize("rollout_id", ["nobody", "\ud800", "nul\0", ""])
def test_unknown_rollout_is_refused(over: Writing, rollout_id: str) -> None:
    (answer,) = over.batch(rescore(rollout_id))
    assert type(answer) is UnknownRollout


def test_rollout_that_is_not_over_is_refused_until_it_is(writer: Writing, database_url: str) -> None:
    writer.batch(scheduler(), admit())
    refused: list[Any] = writer.batch(rescore())
    writer.do(claim())
    refused += writer.batch(rescore())
    assert [type(answer) for answer in refused] == [StillActive] * 2
    assert "wait for its end" in str(refused[0])
    assert type(writer.batch(rescore(), finish(), rescore())[0]) is StillActive
    assert event_types(database_url, "r-1")[-1] == "scores_revised"


def test_rollout_that_cleans_up_is_refused(writer: Writing) -> None:
    writer.batch(api(), scheduler(), admit())
    writer.do(claim())
    writer.clock.forward(121)
    writer.do(cmd.Beat("a-1"))
    (ended,) = writer.batch(poll())
    assert (ended.status, ended.scheduler) == ("failure", "s-1")
    assert type(writer.batch(rescore())[0]) is StillActive
    writer.do(close())
    assert writer.do(rescore()) == 1


def test_failed_rollout_without_an_attempt_may_be_scored(writer: Writing, database_url: str) -> None:
    writer.do(admit())
    writer.do(cmd.Cancel("api", ids=("r-1",)))
    assert writer.do(rescore()) == 1
    assert rows(database_url, "SELECT attempt, scoring FROM scores") == [(0, 1)] * 2
    assert_sound(database_url)


def test_number_without_a_json_form_leaves_nothing_behind(over: Writing, database_url: str) -> None:
    bad = rescore(scores=(cmd.Score("exact", 1.0), cmd.Score("length", float("inf"))))
    failed, number = over.batch(bad, rescore())
    assert isinstance(failed, CommandFailed)
    assert number == 1
    assert_sound(database_url)


def test_archived_rollout_is_refused_and_told_where_it_is(over: Writing, database_url: str, tmp_path: Path) -> None:
    over.do(rescore())
    archive(database_url, before_at=2**62, to=tmp_path / "january")
    before = rows(database_url, "SELECT * FROM scores ORDER BY position")
    (answer,) = over.batch(rescore())
    assert isinstance(answer, RolloutArchived)
    assert "january" in str(answer)
    assert rows(database_url, "SELECT * FROM scores ORDER BY position") == before
    assert_sound(database_url)


def test_archive_holds_what_was_scored_anew(over: Writing, database_url: str, tmp_path: Path) -> None:
    over.do(rescore())
    before = events(database_url)
    shown = rows(database_url, ONE)
    archive(database_url, before_at=2**62, to=tmp_path / "archive")
    assert filed(tmp_path / "archive") == before
    assert rows(database_url, ONE) == shown
    assert_sound(database_url)


def test_rollout_scored_while_it_is_archived_stays_whole(
    over: Writing, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was written before; what it holds is not what the ledger has any more."""
    kind = type(database_of(parse_url(database_url)))
    upkeep = kind.upkeep

    def scored_first(self: Any) -> Any:
        over.do(rescore())
        return upkeep(self)

    monkeypatch.setattr(kind, "upkeep", scored_first)
    before = events(database_url)
    with pytest.raises(FileRefused, match="is not in this ledger as the file has it; name another file"):
        archive(database_url, before_at=2**62, to=tmp_path / "early")
    monkeypatch.undo()
    assert events(database_url).keys() > before.keys()
    archive(database_url, before_at=2**62, to=tmp_path / "late")
    assert events(database_url) == {}
    assert_sound(database_url)


def test_scores_of_a_rollout_that_failed_are_no_reward_until_it_is_scored_once_more(
    writer: Writing, database_url: str
) -> None:
    writer.batch(scheduler(), admit())
    writer.do(claim())
    writer.batch(
        record(ev.RewardRecorded(attempt=0, name="exact", value=1.0)),
        finish(status="failure", err_message="the other reward raised", err_category="agent_error", rewards=()),
    )
    for view in VIEWED:
        assert rows(database_url, f"SELECT status, reward FROM {view}") == [("failure", None)], view
    assert rows(database_url, "SELECT name, value FROM score_summary") == [("exact", 1.0)]
    writer.do(rescore())
    for view in VIEWED:
        assert rows(database_url, f"SELECT status, reward FROM {view}") == [("failure", 0.5)], view
