"""Which rows of the history tables an event adds. Pure; rows are keyed by rollout number and event position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollbook_client import events as ev

from .state import Recorded
from .text import column_text

Row = tuple[Any, ...]
HistoryRows = dict[str, list[Row]]


def _admitted(record: Recorded, event: ev.RolloutAdmitted, add: HistoryRows) -> None:
    add["admissions"].append(
        (
            record.number,
            record.position,
            record.recorded_at,
            column_text(event.label),
            column_text(event.endpoint_origin),
        )
    )


def _lease(record: Recorded, kind: str, expires_at: int, reason: str | None, add: HistoryRows) -> None:
    add["lease_changes"].append(
        (record.number, record.position, record.recorded_at, kind, expires_at, column_text(reason))
    )


def _extended(record: Recorded, event: ev.LeaseExtended, add: HistoryRows) -> None:
    _lease(record, "extended", event.expires_at, event.reason, add)


def _expired(record: Recorded, event: ev.LeaseExpired, add: HistoryRows) -> None:
    _lease(record, "expired", event.expired_at, None, add)


def _attempt_started(record: Recorded, event: ev.AttemptStarted, add: HistoryRows) -> None:
    add["attempt_starts"].append((record.number, record.position, event.attempt, record.recorded_at, event.scheduler))


def _attempt_ended(record: Recorded, event: ev.AttemptEnded, add: HistoryRows) -> None:
    add["attempt_ends"].append(
        (record.number, record.position, event.attempt, record.recorded_at, event.outcome, column_text(event.reason))
    )


def _phase(record: Recorded, event: ev.PhaseEntered, add: HistoryRows) -> None:
    add["phases"].append((record.number, record.position, event.attempt, record.recorded_at, event.phase))


def _timed(record: Recorded, event: ev.StageTimed, add: HistoryRows) -> None:
    add["stage_spans"].extend(
        (record.number, record.position, index, event.attempt, column_text(span.stage), span.started_at, span.ended_at)
        for index, span in enumerate(event.spans)
    )


def _reward(record: Recorded, event: ev.RewardRecorded, add: HistoryRows) -> None:
    add["scores"].append(
        (record.number, record.position, event.attempt, "reward", column_text(event.name), event.value, event.weight)
    )


def _metric(record: Recorded, event: ev.MetricRecorded, add: HistoryRows) -> None:
    add["scores"].append(
        (record.number, record.position, event.attempt, "metric", column_text(event.name), event.value, None)
    )


def _cancellation(record: Recorded, event: ev.CancellationRequested, add: HistoryRows) -> None:
    add["cancellations"].append(
        (
            record.number,
            record.position,
            record.recorded_at,
            column_text(event.requested_by),
            column_text(event.selector),
        )
    )


def _finished(record: Recorded, event: ev.RolloutFinished, add: HistoryRows) -> None:
    add["outcomes"].append(
        (
            record.number,
            record.position,
            record.recorded_at,
            event.status,
            event.err_category,
            column_text(event.err_message),
        )
    )


# A renewal adds no row: its event and the rollout's lease timeout say all, and polls are the most frequent commands.
_PROJECTIONS: dict[type[ev.Event], Callable[[Recorded, Any, HistoryRows], None]] = {
    ev.RolloutAdmitted: _admitted,
    ev.LeaseExtended: _extended,
    ev.LeaseExpired: _expired,
    ev.AttemptStarted: _attempt_started,
    ev.AttemptEnded: _attempt_ended,
    ev.PhaseEntered: _phase,
    ev.StageTimed: _timed,
    ev.RewardRecorded: _reward,
    ev.MetricRecorded: _metric,
    ev.CancellationRequested: _cancellation,
    ev.RolloutFinished: _finished,
}


def add_history(record: Recorded, add: HistoryRows) -> None:
    """Append to ``add`` (a default dict of table name to rows) the rows this event writes."""
    project = _PROJECTIONS.get(type(record.event))
    if project is not None:
        project(record, record.event, add)
