"""The audit views: what they say of a known history to anybody who reads the database."""

import json
from typing import Any

import pytest

from rollbook.ledger import commands as cmd
from rollbook_projections.task_views import VIEWS_3
from rollbook_projections.text import column_text
from rollbook_projections.views import VIEWS_1
from tests.support.histories import HARD_TEXTS, one_of_each_ending, recorded_and_scored_anew, texts_in_every_place
from tests.support.ledger import SECOND_US, START_US, Writing, admit, claim, scheduler
from tests.support.sql import shell

ORDER = {
    "rollout_timeline": "rollout_id, seq",
    "lease_history": "rollout_id, position",
    "attempts": "rollout_id, attempt",
    "cancellation_log": "rollout_id, position",
    "phase_durations": "rollout_id, attempt, started_at",
    "reward_outcomes": "rollout_id",
    "rollout_summary": "rollout_id",
    "rollout_reports": "rollout_id",
    "score_summary": "position",
    "call_summary": "position",
}


def view(database_url: str, name: str, rollout_id: str | None = None) -> list[dict[str, Any]]:
    """The rows of a view in order, all or one rollout's, as anybody reads them."""
    where, parameters = ("", ()) if rollout_id is None else ("WHERE rollout_id = ?", (rollout_id,))
    with shell(database_url) as anybody:
        return anybody.records(f"SELECT * FROM {name} {where} ORDER BY {ORDER[name]}", parameters)


def at(seconds: float) -> str:
    assert START_US == 1_700_000_000 * SECOND_US
    minutes, rest = divmod(20 + seconds, 60)
    return f"2023-11-14T22:{13 + int(minutes):02d}:{rest:06.3f}Z"


@pytest.fixture
def known(writer: Writing, database_url: str) -> str:
    """r-1 is lost once and then succeeds; r-2 is cancelled while it waits; r-3 loses its lease."""
    one_of_each_ending(writer)
    return database_url


def test_timeline_tells_every_event_in_order(known: str) -> None:
    told = [(row["seq"], row["type"], row["attempt"], row["detail"]) for row in view(known, "rollout_timeline", "r-1")]
    assert told == [
        (1, "rollout_admitted", None, None),
        (2, "attempt_started", 1, "s-1"),
        (3, "phase_entered", 1, "running"),
        (4, "attempt_ended", 1, "lost: runner killed"),
        (5, "attempt_started", 2, "s-1"),
        (6, "phase_entered", 2, "running"),
        (7, "lease_renewed", None, None),
        (8, "stage_timed", None, None),
        (9, "reward_recorded", 2, "exact = 1.0"),
        (10, "reward_recorded", 2, "style = 0.5"),
        (11, "reward_recorded", 2, "never = null"),
        (12, "metric_recorded", 2, "tokens = 12.0"),
        (13, "rollout_finished", None, "success"),
        (14, "attempt_ended", 2, "completed"),
    ]
    assert [row["at"] for row in view(known, "rollout_timeline", "r-1")][:4] == [at(0), at(1), at(1), at(2.5)]


def test_lease_history_tells_grants_renewals_and_expiry(known: str) -> None:
    assert [
        (row["kind"], row["at"], row["expires_at"], row["last_scheduler"])
        for row in view(known, "lease_history", "r-1")
    ] == [("granted", at(0), at(120), None), ("renewed", at(3.5), at(123.5), "s-1")]
    assert [(row["kind"], row["expires_at"]) for row in view(known, "lease_history", "r-3")] == [
        ("granted", at(124.5)),
        ("expired", at(124.5)),
    ]


def test_extension_tells_its_reason(writer: Writing, database_url: str) -> None:
    writer.do(admit("r-1"))
    writer.clock.forward(10)
    writer.do(cmd.ExtendLeases(reason="no API was alive"))
    (_, extended) = view(database_url, "lease_history", "r-1")
    assert (extended["kind"], extended["expires_at"], extended["reason"]) == ("extended", at(130), "no API was alive")


def test_attempts_tell_their_interval_and_outcome(known: str) -> None:
    told = [(row["attempt"], row["outcome"], row["reason"], row["seconds"]) for row in view(known, "attempts")]
    assert told == [(1, "lost", "runner killed", 1.5), (2, "completed", None, 2.0)]


def test_open_attempt_has_no_end(writer: Writing, database_url: str) -> None:
    writer.batch(scheduler(), admit("r-1"))
    writer.do(claim())
    (row,) = view(database_url, "attempts")
    assert (row["ended_at"], row["outcome"], row["seconds"]) == (None, None, None)


def test_cancellations_tell_who_asked_and_how_it_ended(known: str) -> None:
    (row,) = view(known, "cancellation_log")
    assert (row["rollout_id"], row["requested_by"], row["selector"]) == ("r-2", "api", "ids")
    assert (row["status_now"], row["seconds_to_end"]) == ("cancelled", 0.0)


def test_phase_durations_are_the_spans(known: str) -> None:
    told = [(row["attempt"], row["stage"], row["seconds"], row["ended_at"]) for row in view(known, "phase_durations")]
    assert told == [(2, "agent", 1.0, at(4)), (2, "grading", 0.25, at(4.25))]


def test_reward_outcomes_keep_failures_apart_from_zeros(known: str) -> None:
    told = [
        (row["rollout_id"], row["status"], row["reward"], row["err_category"], row["label"], row["attempts"])
        for row in view(known, "reward_outcomes")
    ]
    assert told == [
        ("r-1", "success", 1.5, None, "six", 2),
        ("r-2", "cancelled", None, None, "6", 0),
        ("r-3", "failure", None, "lease_expired", "6", 0),
    ]


@pytest.mark.parametrize("name", sorted(VIEWS_1))
def test_anybody_reads_the_view(known: str, name: str) -> None:
    assert "r-" in str(view(known, name))


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_no_text_breaks_a_view(writer: Writing, database_url: str, text: str) -> None:
    texts_in_every_place(writer, text)
    for name in VIEWS_1:
        assert view(database_url, name)


@pytest.fixture
def scored(writer: Writing, database_url: str) -> str:
    recorded_and_scored_anew(writer)
    return database_url


def test_timeline_tells_what_an_attempt_recorded_and_who_scored_anew(scored: str) -> None:
    told = [
        (row["type"], row["attempt"], row["detail"])
        for row in view(scored, "rollout_timeline", "t-1")
        if row["type"] not in {"rollout_admitted", "attempt_started"}
    ]
    assert told == [
        ("stage_timed", None, None),
        ("model_called", 1, "policy call 1: stop"),
        ("model_called", 1, "judge:style call 2: http"),
        ("message_rewritten", 1, "shorten rewrote the request"),
        ("message_rewritten", 1, "soften rewrote the response"),
        ("exchange_stopped", 1, "max_turns"),
        ("reward_recorded", 1, "exact = 1.0"),
        ("reward_recorded", 1, "style = null"),
        ("metric_recorded", 1, "length = 3.0"),
        ("trace_saved", 1, "2 bytes"),
        ("rollout_finished", None, "success"),
        ("attempt_ended", 1, "completed"),
        ("reward_recorded", 1, "exact = 0.0"),
        ("reward_recorded", 1, "style = 0.25"),
        ("scores_revised", None, "scoring 1 by cli:alice: 0.5"),
        ("reward_recorded", 1, "exact = null"),
        ("reward_recorded", 1, "style = 0.25"),
        ("scores_revised", None, "scoring 2 by cli:alice: 0.5"),
    ]


def test_one_row_reports_a_rollout(scored: str) -> None:
    (row,) = view(scored, "rollout_reports", "t-1")
    seconds = {name: row[f"{name}_seconds"] for name in ("queue", "boot", "setup", "agent", "finalize", "scoring")}
    assert seconds == {"queue": None, "boot": 5e-6, "setup": None, "agent": None, "finalize": None, "scoring": None}
    assert (row["model_calls"], row["failed_calls"], row["input_tokens"], row["output_tokens"]) == (1, 0, 14, 16)
    assert (row["reward"], row["rewards"]) == (0.25, '{"exact": null, "style": 0.25}')
    assert (row["metrics"], row["scoring"]) == (None, 2)
    assert (row["stop_condition"], row["trace_bytes"], row["status"]) == ("max_turns", 2, "success")


def test_report_is_of_the_last_attempt_alone(scored: str) -> None:
    (row,) = view(scored, "rollout_reports", "t-2")
    assert (row["attempts"], row["model_calls"], row["rewards"], row["scoring"]) == (2, 1, '{"reward": 1.0}', 0)
    assert [call["attempt"] for call in view(scored, "call_summary", "t-2")] == [1, 2]


def test_report_of_a_rollout_that_runs_or_waits_has_gaps(scored: str) -> None:
    (row,) = view(scored, "rollout_reports", "t-3")
    assert (row["status"], row["model_calls"], row["reward"], row["rewards"]) == ("queued", 1, None, None)
    assert row["finished_at"] is None


def test_scores_tell_which_of_them_count(scored: str) -> None:
    told = [
        (row["scoring"], row["counts"], row["name"], row["value"], row["rescored_by"])
        for row in view(scored, "score_summary", "t-1")
    ]
    assert told == [
        (0, 0, "exact", 1.0, None),
        (0, 0, "style", None, None),
        (0, 0, "length", 3.0, None),
        (1, 0, "exact", 0.0, "cli:alice"),
        (1, 0, "style", 0.25, "cli:alice"),
        (2, 1, "exact", None, "cli:alice"),
        (2, 1, "style", 0.25, "cli:alice"),
    ]


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_no_text_breaks_a_view_of_calls_and_scores(writer: Writing, database_url: str, text: str) -> None:
    texts_in_every_place(writer, text)
    assert {name for name in VIEWS_3 if not view(database_url, name)} == set()
    (row,) = view(database_url, "rollout_reports", "r-1")
    assert (row["model_calls"], row["input_tokens"]) == (1, None)
    assert list(json.loads(row["rewards"])) == [column_text(text.replace("/", "-"))]
