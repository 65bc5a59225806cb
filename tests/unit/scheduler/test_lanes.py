"""What waits of an attempt's records, and what its end need not tell again."""

from __future__ import annotations

import pytest

from rollbook.ledger import commands as cmd
from rollbook.scheduler import lanes
from rollbook.scheduler.lanes import Lane, weight
from rollbook_client import events as ev
from tests.support.ledger import CALLED, finish

SPANS = (ev.StageSpan("queue", 1, 2), ev.StageSpan("boot", 2, 3))
END = finish(
    spans=SPANS, rewards=(cmd.Score("reward", 1.0),), metrics=(cmd.Score("turns", 3.0), cmd.Score("tokens", 9.0))
)


@pytest.fixture
def lane() -> Lane:
    return Lane("r-1", 1, "s-1")


def test_records_are_taken_in_their_order_some_at_a_time(lane: Lane) -> None:
    stops = [ev.ExchangeStopped(attempt=0, condition=str(index)) for index in range(lanes.MAX_COMMAND_EVENTS + 1)]
    for event in stops:
        lane.put(event)
    assert [*lane.take(), *lane.take()] == stops
    assert lane.take() == ()


def test_large_records_are_taken_by_their_size_and_one_in_any_case(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="x" * size) for size in (5_000, 400, 400, 400)]
    monkeypatch.setattr(lanes, "MAX_COMMAND_BYTES", 2 * weight(traces[1]))
    for event in traces:
        lane.put(event)
    assert [len(lane.take()) for _ in range(4)] == [1, 2, 1, 0]


def test_end_of_an_attempt_that_recorded_nothing_is_told_whole(lane: Lane) -> None:
    assert lane.rest_of(END) == END
    lane.landed((CALLED, ev.ExchangeStopped(attempt=0, condition="max_turns")))
    assert lane.rest_of(END) == END


def test_reward_is_not_recorded_beside_those_that_it_is_the_sum_of(lane: Lane) -> None:
    lane.landed((ev.RewardRecorded(attempt=0, name="exact", value=None),))
    rest = lane.rest_of(END)
    assert rest.rewards == ()
    assert (rest.sample, rest.metrics, rest.spans) == (END.sample, END.metrics, END.spans)


def test_metrics_and_stages_are_not_recorded_twice(lane: Lane) -> None:
    lane.landed(
        (
            ev.MetricRecorded(attempt=0, name="turns", value=3.0),
            ev.StageTimed(attempt=0, spans=(ev.StageSpan("boot", 2, 3), ev.StageSpan("setup", 3, 4))),
        )
    )
    rest = lane.rest_of(END)
    assert rest.metrics == (cmd.Score("tokens", 9.0),)
    assert rest.spans == SPANS[:1]
    assert rest.rewards == END.rewards
