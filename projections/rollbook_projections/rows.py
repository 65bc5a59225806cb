"""Which rows of the history tables an event adds. Pure; rows are keyed by rollout number and event position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollbook_client import events as ev

from .state import Recorded
from .text import column_text

Row = tuple[Any, ...]
HistoryRows = dict[str, list[Row]]

MOST_TOKENS = 2**40
"""No call has more. What an endpoint tells beyond that is no count, and sums of it would be beyond all integers."""


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


def _called(record: Recorded, event: ev.ModelCalled, add: HistoryRows) -> None:
    add["model_calls"].append(
        (
            record.number,
            record.position,
            event.attempt,
            event.call,
            column_text(event.purpose),
            column_text(event.model),
            event.started_at,
            event.first_chunk_at,
            event.ended_at,
            int(event.streamed),
            _tokens(event.input_tokens),
            _tokens(event.output_tokens),
            _tokens(event.cached_input_tokens),
            column_text(event.finish_reason),
            column_text(event.error_kind),
            column_text(event.error),
        )
    )


def _tokens(count: int | None) -> int | None:
    return count if count is not None and 0 <= count <= MOST_TOKENS else None


def _stopped(record: Recorded, event: ev.ExchangeStopped, add: HistoryRows) -> None:
    add["stops"].append(
        (record.number, record.position, event.attempt, record.recorded_at, column_text(event.condition))
    )


def _rewritten(record: Recorded, event: ev.MessageRewritten, add: HistoryRows) -> None:
    add["rewrites"].append(
        (
            record.number,
            record.position,
            event.attempt,
            record.recorded_at,
            column_text(event.hook),
            event.side,
            event.call,
        )
    )


def _trace(record: Recorded, event: ev.TraceSaved, add: HistoryRows) -> None:
    add["traces"].append(
        (record.number, record.position, event.attempt, record.recorded_at, event.version, event.size_bytes)
    )


def _reward(record: Recorded, event: ev.RewardRecorded, add: HistoryRows) -> None:
    _score(record, event, "reward", event.weight, add)


def _metric(record: Recorded, event: ev.MetricRecorded, add: HistoryRows) -> None:
    _score(record, event, "metric", None, add)


def _score(
    record: Recorded,
    event: ev.RewardRecorded | ev.MetricRecorded,
    kind: str,
    weight: float | None,
    add: HistoryRows,
) -> None:
    add["scores"].append(
        (
            record.number,
            record.position,
            event.attempt,
            kind,
            column_text(event.name),
            event.value,
            weight,
            event.scoring,
        )
    )


def _revised(record: Recorded, event: ev.ScoresRevised, add: HistoryRows) -> None:
    add["scorings"].append(
        (
            record.number,
            record.position,
            record.recorded_at,
            event.scoring,
            column_text(event.task),
            column_text(event.by),
            event.reward,
        )
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
    ev.ModelCalled: _called,
    ev.ExchangeStopped: _stopped,
    ev.MessageRewritten: _rewritten,
    ev.TraceSaved: _trace,
    ev.RewardRecorded: _reward,
    ev.MetricRecorded: _metric,
    ev.ScoresRevised: _revised,
    ev.CancellationRequested: _cancellation,
    ev.RolloutFinished: _finished,
}


def add_history(record: Recorded, add: HistoryRows) -> None:
    """Append to ``add`` (a default dict of table name to rows) the rows this event writes."""
    project = _PROJECTIONS.get(type(record.event))
    if project is not None:
        project(record, record.event, add)
