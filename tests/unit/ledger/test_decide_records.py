"""What attempts may record of themselves, and what scoring a rollout anew adds to it. Pure, no database."""

from typing import Any

import msgspec
import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger.decide import Facts, decide
from rollbook.ledger.refusals import NotForRecord, Refusal, StillActive, Superseded, UnknownRollout
from rollbook_client import events as ev
from rollbook_projections import RolloutState
from tests.support.ledger import CALLED, LEASE_US, SECOND_US, START_US, History, admitted, record, rescore

NOW = START_US + 10 * SECOND_US
LATE = START_US + LEASE_US
STARTED = (ev.AttemptStarted(attempt=1, scheduler="s-1"), ev.PhaseEntered(attempt=1, phase="running"))
FAILED = ev.RolloutFinished(status="failure", err_category="lease_expired")
ENDED = ev.AttemptEnded(attempt=1, outcome="completed")

OF_ITSELF = (
    ev.StageTimed(attempt=0, spans=(ev.StageSpan("boot", 1, 2),)),
    CALLED,
    ev.MessageRewritten(attempt=0, hook="shorten", side="request", call=1),
    ev.ExchangeStopped(attempt=0, condition="max_turns"),
    ev.TraceSaved(attempt=0, version=1, size_bytes=2, data="eJyrBQABdQD5"),
)
SCORES = (
    ev.RewardRecorded(attempt=0, name="exact", value=None, weight=0.5),
    ev.MetricRecorded(attempt=0, name="length", value=3.0),
)


def state(*events: ev.Event) -> RolloutState:
    return History().add(admitted(), *events)


def judged(before: RolloutState | None, command: cmd.Command[Any], *, now: int = NOW, scorings: int = 0) -> Any:
    return decide(before, Facts(api_seen_at=now, scorings=scorings), command, now)


def numbered(*events: ev.Event) -> tuple[ev.Event, ...]:
    """As the ledger records them in attempt 1."""
    made: Any = [type(event)(**{**fields_of(event), "attempt": 1}) for event in events]
    return tuple(made)


def some(kind: type[ev.Event]) -> ev.Event:
    return kind(**{field.name: 1 for field in msgspec.structs.fields(kind) if field.required})


def fields_of(event: ev.Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_records_are_kept_in_their_order_with_the_number_of_the_attempt() -> None:
    events = (*OF_ITSELF, *SCORES)
    assert judged(state(*STARTED), record(*events)) == numbered(*events)


def test_every_event_that_may_be_recorded_is_taken() -> None:
    assert {type(event) for event in (*OF_ITSELF, *SCORES)} == set(ev.RECORDABLE)


@pytest.mark.parametrize(
    "command",
    [record(attempt=2), record(scheduler="s-2"), record(attempt=0)],
    ids=["another attempt", "another scheduler", "no attempt"],
)
def test_records_of_another_attempt_are_refused(command: cmd.Record) -> None:
    assert isinstance(judged(state(*STARTED), command), Superseded)
    assert isinstance(judged(None, command), Superseded)


def test_records_after_the_attempts_end_are_refused() -> None:
    assert isinstance(judged(state(*STARTED, ENDED), record()), Superseded)
    assert isinstance(judged(state(*STARTED, FAILED, ENDED), record()), Superseded)


@pytest.mark.parametrize("kind", sorted(set(ev.EVENT_TYPES) - {cls.TYPE for cls in ev.RECORDABLE}))
def test_events_of_the_ledger_itself_are_refused_with_all_beside_them(kind: str) -> None:
    event = some(ev.EVENT_TYPES[kind])
    refused = judged(state(*STARTED), record(CALLED, event))
    assert isinstance(refused, NotForRecord)
    assert (refused.kind, "docs/events.md" in str(refused)) == (kind, True)


def test_attempt_cannot_pass_for_a_later_scoring() -> None:
    (event,) = judged(state(*STARTED), record(ev.MetricRecorded(attempt=7, name="m", value=1.0, scoring=3)))
    assert (event.attempt, event.scoring) == (1, 0)


def test_rollout_that_is_over_takes_what_was_done_and_no_scores() -> None:
    assert judged(state(*STARTED, FAILED), record(*OF_ITSELF, *SCORES)) == numbered(*OF_ITSELF)


def test_record_past_the_lease_ends_the_rollout() -> None:
    *kept, expired, finished = judged(state(*STARTED), record(*OF_ITSELF, *SCORES), now=LATE)
    assert tuple(kept) == numbered(*OF_ITSELF)
    assert expired == ev.LeaseExpired(expired_at=LATE)
    assert (finished.status, finished.err_category) == ("failure", "lease_expired")


def test_scoring_anew_tells_rewards_by_their_weights_then_who_asked() -> None:
    over = state(*STARTED, FAILED, ENDED)
    assert judged(over, rescore(weights={"exact": 2.0})) == (
        ev.RewardRecorded(attempt=1, name="exact", value=0.5, weight=2.0, scoring=1),
        ev.MetricRecorded(attempt=1, name="length", value=3.0, scoring=1),
        ev.ScoresRevised(task="tasks:Sums", by="cli:alice", reward=0.5, scoring=1),
    )
    assert {event.scoring for event in judged(over, rescore(), scorings=2)} == {3}


def test_scoring_anew_tells_a_reward_and_a_metric_of_one_name_apart() -> None:
    scores = (cmd.LaterScore("turns", 3.0, None), cmd.LaterScore("turns", 0.5, 2.0))
    command = cmd.Rescore("r-1", "tasks:Sums", "cli:alice", scores, 1.0)
    told = judged(state(*STARTED, FAILED, ENDED), command)
    assert [type(event) for event in told] == [ev.MetricRecorded, ev.RewardRecorded, ev.ScoresRevised]


def test_scoring_anew_without_scores_is_told_too() -> None:
    (event,) = judged(state(*STARTED, FAILED, ENDED), rescore(scores=(), weights={}, reward=None))
    assert event == ev.ScoresRevised(task="tasks:Sums", by="cli:alice", reward=None, scoring=1)


@pytest.mark.parametrize(
    "before, refusal",
    [
        (None, UnknownRollout),
        (state(), StillActive),
        (state(*STARTED), StillActive),
        (state(*STARTED, FAILED), StillActive),
    ],
    ids=["unknown", "queued", "running", "cleaning up"],
)
def test_only_what_is_over_is_scored_anew(before: RolloutState | None, refusal: type[Refusal]) -> None:
    assert isinstance(judged(before, rescore()), refusal)


def test_scoring_anew_leaves_everything_but_the_chain_as_it_was() -> None:
    made = History()
    over = made.add(admitted(), *STARTED, FAILED, ENDED)
    after = made.add(*judged(over, rescore()))
    assert after.seq == over.seq + 3
    assert fields_of_state(after) == fields_of_state(over)


def fields_of_state(folded: RolloutState) -> dict[str, Any]:
    names = set(folded.__struct_fields__) - {"seq", "head"}
    return {name: getattr(folded, name) for name in names}
