"""The audit views: what they say of a known history, and that the plain shell reads them."""

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from rollbook.ledger import commands as cmd
from rollbook_client.events import StageSpan
from rollbook_projections.views import VIEWS_1
from tests.support.ledger import (
    SECOND_US,
    START_US,
    Writing,
    admit,
    api,
    cancel,
    claim,
    close,
    enter,
    finish,
    ledger_path,
    plain,
    poll,
    scheduler,
)

HARD_TEXTS = [
    "\x00",
    "\ud800",
    "'; DROP TABLE events; --",
    "\x1b[31m",
    "x" * 100_000,
    "%s{iso:x}:y",
    "\U0001f600\u2028",
]


def view(database_url: str, name: str, rollout_id: str | None = None) -> list[dict[str, Any]]:
    with plain(database_url) as connection:
        where = "" if rollout_id is None else " WHERE rollout_id = ?"
        cursor = connection.execute(f"SELECT * FROM {name}{where}", () if rollout_id is None else (rollout_id,))
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]


def at(seconds: float) -> str:
    assert START_US == 1_700_000_000 * SECOND_US
    minutes, rest = divmod(20 + seconds, 60)
    return f"2023-11-14T22:{13 + int(minutes):02d}:{rest:06.3f}Z"


@pytest.fixture
def known(writer: Writing, database_url: str) -> str:
    """r-1 is lost once and then succeeds; r-2 is cancelled while it waits; r-3 loses its lease."""
    step = writer.clock.forward
    writer.batch(api(), scheduler(), admit("r-1", label="six"))
    step(1)
    writer.do(claim())
    writer.do(enter())
    step(1.5)
    writer.do(close(reason="runner killed"))
    writer.do(claim())
    step(1)
    writer.do(enter(attempt=2))
    writer.do(poll())
    spans = (
        StageSpan("agent", START_US + 3 * SECOND_US, START_US + 4 * SECOND_US),
        StageSpan("grading", START_US + 4 * SECOND_US, START_US + 4_250_000),
    )
    step(1)
    writer.do(
        finish(
            attempt=2,
            spans=spans,
            rewards=(cmd.Score("exact", 1.0), cmd.Score("style", 0.5), cmd.Score("never", None)),
            metrics=(cmd.Score("tokens", 12.0),),
        )
    )
    writer.batch(admit("r-2"), admit("r-3"))
    step(2)
    writer.do(cancel("r-2", requested_by="api"))
    step(121)
    writer.do(cmd.Beat("a-1"))
    writer.do(poll("r-3"))
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


def shell(database_url: str, query: str) -> str:
    """What the command line shell prints; Python's own where the machine has no `sqlite3`."""
    command = [shutil.which("sqlite3")] if shutil.which("sqlite3") else [sys.executable, "-m", "sqlite3"]
    done = subprocess.run(
        [*map(str, command), str(ledger_path(database_url)), query], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


@pytest.mark.parametrize("name", sorted(VIEWS_1))
def test_plain_shell_reads_the_view(known: str, name: str) -> None:
    assert "r-" in shell(known, f"SELECT * FROM {name}")


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_no_text_breaks_a_view(writer: Writing, database_url: str, text: str) -> None:
    words = text.replace("/", "-")
    writer.batch(scheduler(), admit("r-1", label=words), admit("r-2"), admit("r-3"))
    writer.do(claim(limit=2))
    writer.batch(
        finish(
            "r-1",
            status="failure",
            err_message=words,
            sample=json.dumps({"messages": [words]}).encode(),
            spans=(StageSpan(words, 0, 2**62),),
            rewards=(cmd.Score(words, 1e308), cmd.Score("more", 1e308)),
            metrics=(cmd.Score(words, -5e-324),),
        ),
        close("r-2", reason=words),
        cancel("r-3", requested_by=words),
    )
    for name in VIEWS_1:
        assert view(database_url, name)
        assert shell(database_url, f"SELECT * FROM {name}")
