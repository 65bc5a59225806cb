"""The history rows of each event fit their tables."""

from collections import defaultdict
from typing import Any

import pytest

from rollbook_client import events as ev
from rollbook_projections import HistoryRows, Recorded, add_history
from rollbook_projections.tables import HISTORY_TABLES
from tests.support.ledger import START_US, admitted

COLUMNS = {table.name: [column.name for column in table.columns] for table in HISTORY_TABLES}


def rows(event: ev.Event) -> list[tuple[str, dict[str, Any]]]:
    """(table, row by column) of what an event adds, without the key and the time."""
    added: HistoryRows = defaultdict(list)
    add_history(Recorded(17, 5, 2, START_US, b"", event), added)
    found = []
    for table, new in added.items():
        for row in new:
            named = dict(zip(COLUMNS[table], row, strict=True))
            assert (named.pop("number"), named.pop("position")) == (5, 17)
            assert named.pop("at", START_US) == START_US
            found.append((table, named))
    return found


def test_admission_is_noted() -> None:
    assert rows(admitted(label="a\x00")) == [
        ("admissions", {"label": "a\ufffd", "endpoint_origin": "https://chat.example"}),
    ]


@pytest.mark.parametrize(
    "event, table, row",
    [
        (
            ev.LeaseExtended(expires_at=2, reason="why"),
            "lease_changes",
            {"kind": "extended", "expires_at": 2, "reason": "why"},
        ),
        (ev.LeaseExpired(expired_at=3), "lease_changes", {"kind": "expired", "expires_at": 3, "reason": None}),
        (ev.AttemptStarted(attempt=1, scheduler="s"), "attempt_starts", {"attempt": 1, "scheduler": "s"}),
        (
            ev.AttemptEnded(attempt=1, outcome="lost", reason="\ud800"),
            "attempt_ends",
            {"attempt": 1, "outcome": "lost", "reason": "\ufffd"},
        ),
        (ev.PhaseEntered(attempt=1, phase="grading"), "phases", {"attempt": 1, "phase": "grading"}),
        (
            ev.RewardRecorded(attempt=1, name="r", value=None, weight=0.5),
            "scores",
            {"attempt": 1, "kind": "reward", "name": "r", "value": None, "weight": 0.5, "scoring": 0},
        ),
        (
            ev.MetricRecorded(attempt=1, name="m", value=1e308),
            "scores",
            {"attempt": 1, "kind": "metric", "name": "m", "value": 1e308, "weight": None, "scoring": 0},
        ),
        (
            ev.MetricRecorded(attempt=1, name="m", value=None, scoring=2),
            "scores",
            {"attempt": 1, "kind": "metric", "name": "m", "value": None, "weight": None, "scoring": 2},
        ),
        (
            ev.ScoresRevised(task="t:\x00", by="cli:a", reward=0.5, scoring=2),
            "scorings",
            {"scoring": 2, "task": "t:\ufffd", "asked_by": "cli:a", "reward": 0.5},
        ),
        (
            ev.ModelCalled(
                attempt=1,
                call=3,
                model="m\ud800",
                started_at=1,
                ended_at=4,
                first_chunk_at=2,
                streamed=True,
                input_tokens=-1,
                output_tokens=2**41,
                cached_input_tokens=2**40,
                error_kind="http",
                error="x" * 9_000,
            ),
            "model_calls",
            {
                "attempt": 1,
                "call": 3,
                "purpose": "policy",
                "model": "m\ufffd",
                "started_at": 1,
                "first_chunk_at": 2,
                "ended_at": 4,
                "streamed": 1,
                "input_tokens": None,
                "output_tokens": None,
                "cached_input_tokens": 2**40,
                "finish_reason": None,
                "error_kind": "http",
                "error": "x" * 8_192,
            },
        ),
        (
            ev.ExchangeStopped(attempt=1, condition="enough\x00"),
            "stops",
            {"attempt": 1, "condition": "enough\ufffd"},
        ),
        (
            ev.MessageRewritten(attempt=1, hook="h\x00", side="request", call=2),
            "rewrites",
            {"attempt": 1, "hook": "h\ufffd", "side": "request", "call": 2},
        ),
        (
            ev.TraceSaved(attempt=1, version=1, size_bytes=2**31, data="eJyrBQABdQD5"),
            "traces",
            {"attempt": 1, "version": 1, "size_bytes": 2**31},
        ),
        (
            ev.CancellationRequested(requested_by="api", selector="prefix:\x00"),
            "cancellations",
            {"requested_by": "api", "selector": "prefix:\ufffd"},
        ),
        (
            ev.RolloutFinished(status="failure", err_message="no\x00", err_category="timeout"),
            "outcomes",
            {"status": "failure", "err_category": "timeout", "err_message": "no\ufffd"},
        ),
    ],
)
def test_event_adds_its_row(event: ev.Event, table: str, row: dict[str, Any]) -> None:
    assert rows(event) == [(table, row)]


def test_spans_add_one_row_each_in_their_order() -> None:
    spans = (ev.StageSpan("agent", 1, 2), ev.StageSpan("grading\ud800", 2, 3))
    assert rows(ev.StageTimed(attempt=1, spans=spans)) == [
        ("stage_spans", {"idx": 0, "attempt": 1, "stage": "agent", "started_at": 1, "ended_at": 2}),
        ("stage_spans", {"idx": 1, "attempt": 1, "stage": "grading\ufffd", "started_at": 2, "ended_at": 3}),
    ]


def test_long_texts_are_cut() -> None:
    ((_, row),) = rows(ev.RolloutFinished(status="failure", err_message="x" * 100_000))
    assert len(row["err_message"]) == 8_192


def test_renewal_adds_nothing_since_its_event_says_all() -> None:
    assert rows(ev.LeaseRenewed(expires_at=1)) == []
