"""Events on the pipe between a runner and its scheduler."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rollbook.scheduler import records
from rollbook.scheduler.records import RecordError, packed, shifted, unpacked
from rollbook_client import events as ev
from tests.support.ledger import CALLED, SECOND_US, START_US

RECORDS: list[ev.Event] = [
    ev.StageTimed(attempt=0, spans=(ev.StageSpan("boot", 1, 2), ev.StageSpan("setup", 2, 3))),
    CALLED,
    ev.ExchangeStopped(attempt=0, condition="max_turns"),
    ev.MessageRewritten(attempt=0, hook="h", side="response"),
    ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="eJyr"),
    ev.RewardRecorded(attempt=0, name="exact", value=None, weight=0.5),
    ev.MetricRecorded(attempt=0, name="länge\x00", value=1e308),
]


def test_all_that_may_be_recorded_is_tried_here() -> None:
    assert {type(event) for event in RECORDS} == set(ev.RECORDABLE)


@pytest.mark.parametrize("event", RECORDS, ids=lambda event: event.TYPE)
def test_event_arrives_as_it_was(event: ev.Event) -> None:
    kind, data = packed(event)
    assert kind == event.TYPE
    assert unpacked((kind, data)) == event


def test_lone_surrogates_become_question_marks() -> None:
    event = ev.StageTimed(attempt=0, spans=(ev.StageSpan("a\ud800b", 1, 2),))
    assert unpacked(packed(event)) == ev.StageTimed(attempt=0, spans=(ev.StageSpan("a?b", 1, 2),))


@pytest.mark.parametrize(
    "changes", [{"model": object()}, {"call": 2**70}, {"started_at": 1j}], ids=["object", "huge number", "complex"]
)
def test_what_no_event_holds_is_not_sent(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="model_called cannot be sent"):
        packed(msgspec.structs.replace(CALLED, **changes))


def test_what_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1_000)
    with pytest.raises(RecordError, match="the limit is 1000; record less"):
        packed(ev.TraceSaved(attempt=0, version=1, size_bytes=9, data="x" * 1_000))


@pytest.mark.parametrize(
    "record",
    [
        ("rollout_finished", msgspec.msgpack.encode({"status": "success"})),
        ("model_called", msgspec.msgpack.encode({"attempt": 0})),
        ("model_called", packed(msgspec.structs.replace(CALLED, streamed="perhaps"))[1]),
        ("exchange_stopped", b"\xff"),
    ],
    ids=["the ledger's own", "fields missing", "wrong type", "no message"],
)
def test_what_is_no_record_does_not_read(record: tuple[str, bytes]) -> None:
    with pytest.raises(RecordError, match=f"{record[0]} does not read"):
        unpacked(record)


def test_times_of_a_host_become_those_of_the_ledger() -> None:
    call = msgspec.structs.replace(CALLED, first_chunk_at=START_US + 1)
    moved = shifted(call, SECOND_US)
    assert isinstance(moved, ev.ModelCalled)
    assert (moved.started_at, moved.first_chunk_at, moved.ended_at) == (
        START_US + SECOND_US,
        START_US + SECOND_US + 1,
        START_US + 2 * SECOND_US,
    )
    assert shifted(RECORDS[0], 10) == ev.StageTimed(
        attempt=0, spans=(ev.StageSpan("boot", 11, 12), ev.StageSpan("setup", 12, 13))
    )
    assert [shifted(event, 10) for event in RECORDS[2:]] == RECORDS[2:]
