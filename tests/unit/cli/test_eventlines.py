"""Events as lines: aligned, short for a terminal, whole in a pipe."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from rollbook.cli.eventlines import EventLines, detail
from rollbook.ledger.reader import StoredEvent
from tests.unit.cli.terminals import terminal


def event(payload: str = "{}", *, rollout_id: str = "r-1", seq: int = 3, kind: str = "attempt_ended") -> StoredEvent:
    return StoredEvent(7, 1, rollout_id, seq, kind, 1, 1_700_000_000_000_000, payload, b"\0" * 32)


def lines(*events: StoredEvent, with_ids: bool = True) -> list[str]:
    return list(EventLines(with_ids=with_ids).of(list(events)))


def test_line_shows_short_fields_and_neither_long_nor_empty_ones() -> None:
    (line,) = lines(event('{"attempt":1,"outcome":"lost","reason":null,"reduced":false,"sample":{"messages":[]}}'))
    assert line.split() == [
        "7", "2023-11-14", "22:13:20.000Z", "r-1", "3", "attempt_ended", "outcome=lost", "attempt=1",
    ]  # fmt: skip


def test_line_of_one_rollout_does_not_repeat_its_id() -> None:
    (line,) = lines(event(rollout_id="the-one"), with_ids=False)
    assert "the-one" not in line


def test_seq_and_type_stand_below_each_other_whatever_the_ids() -> None:
    of = EventLines(with_ids=True)
    first = list(of.of([event(rollout_id="short"), event(rollout_id="r" * 30, seq=412), event(rollout_id="東" * 9)]))
    later = list(of.of([event(rollout_id="x")]))
    columns = {cell_len(line[: line.index("attempt_ended")]) for line in first + later}
    assert len(columns) == 1


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (
            '{"attempt":2,"spans":[{"stage":"queue","started_at":0,"ended_at":4200},'
            '{"stage":"agent","started_at":5000,"ended_at":1205000}]}',
            "queue 4.2 ms, agent 1.200 s attempt=2",
        ),
        ('{"attempt":1,"spans":[{"other":1}]}', '{"other":1} attempt=1'),
        ('{"name":"reward","value":null}', "name=reward value=null"),
        ('{"lease_timeout_us":120000000,"expires_at":1700000000123456}',
         "lease_timeout=120 s expires_at=2023-11-14 22:13:20.123Z"),
        ('{"scheduler":"0123456789abcdef","label":"a b"}', 'scheduler=01234567 label="a b"'),
        (
            '{"attempt":1,"call":2,"model":"m","started_at":0,"ended_at":236900,"first_chunk_at":13100,"streamed":true,'
            '"input_tokens":14,"output_tokens":16,"cached_input_tokens":null,"finish_reason":"stop","error_kind":null,'
            '"error":null,"purpose":"policy"}',
            "call=2 model=m streamed=true finish_reason=stop took 237 ms first_chunk 13 ms tokens=14+16 attempt=1",
        ),
        (
            '{"attempt":1,"call":1,"model":null,"started_at":0,"ended_at":4200,"first_chunk_at":null,"streamed":false,'
            '"input_tokens":null,"output_tokens":3,"cached_input_tokens":null,"finish_reason":null,'
            '"error_kind":"http","error":"503: busy","purpose":"judge:style"}',
            'call=1 error_kind=http error="503: busy" purpose=judge:style took 4.2 ms tokens=?+3 attempt=1',
        ),
        ('{"attempt":1,"hook":"h","side":"request","call":1}', "hook=h side=request call=1 attempt=1"),
        ('{"attempt":1,"condition":"max_turns"}', "condition=max_turns attempt=1"),
        ('{"attempt":1,"version":1,"size_bytes":56,"data":"eJyr"}', "version=1 size_bytes=56 attempt=1"),
        (
            '{"attempt":1,"name":"r","value":1.0,"weight":0.5,"scoring":0}',
            "name=r value=1.0 weight=0.5 attempt=1",
        ),
        ('{"attempt":1,"name":"m","value":null,"scoring":2}', "name=m value=null scoring=2 attempt=1"),
        (
            '{"task":"coding:Tests","by":"cli:al","reward":0.8,"scoring":2}',
            "task=coding:Tests by=cli:al reward=0.8 scoring=2",
        ),
        ("[]", ""),
    ],
)  # fmt: skip
def test_details_are_for_people(payload: str, says: str) -> None:
    assert detail(payload) == says


@pytest.mark.parametrize("payload", ['{"reason":"' + "x" * 100_000 + '"}', '{"reason":"\\ud800\\u0000\\n"}', "[]"])
def test_event_is_one_line_whatever_its_payload_and_a_pipe_cuts_nothing(payload: str) -> None:
    (line,) = lines(event(payload))
    line.encode()
    assert "\n" not in line and "\0" not in line
    assert "x" * payload.count("x") in line


def test_terminal_cuts_at_its_width_and_keeps_both_ends_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, columns=100):
        (line,) = lines(event('{"reason":"' + "x" * 1_000 + '"}', rollout_id="strawberry-" + "0" * 30 + "-end"))
    assert len(line) == 100
    assert line.endswith("…")
    assert "strawberry-0…" in line and "-end" in line and "attempt_ended" in line
