"""Traces as bytes and back: what agents emit, other versions, damage, and the size of long rollouts."""

import datetime
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.traces import (
    CallError,
    CallTokens,
    MessageDict,
    ModelCall,
    Rewrite,
    Span,
    Trace,
    TraceError,
    TraceFormatError,
    Usage,
    dumps,
    loads,
    pack,
    unpack,
)
from tests.unit.traces.conversations import FEWER, Turn, assistant, played, tokenised, user


def whole() -> Trace:
    """A trace in which no field is left at its default."""
    trace = Trace(
        rollout_id="r-1",
        task={"id": "t-1", "prompt": "a"},
        harness="chat",
        ok=True,
        stop_condition="solved",
        request_rewrites=[Rewrite("hide", "request", None, [user("secret")], [user("a")])],
        response_rewrites=[Rewrite("tidy", "response", 1, [assistant("x ")], [assistant("x")])],
        rewards={"solved": 1.0, "style": None},
        metrics={"steps": 3.0},
        weights={"solved": 1.0, "style": 0.5},
        errors=[TraceError("scoring", "ValueError", "no", "validation_error")],
        spans=[Span("boot", 1, 2), Span("setup", 2, None)],
        extra_usage=[ModelCall(number=1, started_at=5, ended_at=6, usage=Usage(9, 1), purpose="judge:style")],
        info={"seed": 7},
    )
    prompt = trace.commit_prompt([user("a")])
    trace.commit_call(ModelCall(started_at=1, ended_at=2, error=CallError("http", "busy", 429)), None, prompt)
    trace.commit_call(
        ModelCall(
            model="m",
            started_at=3,
            ended_at=9,
            first_chunk_at=4,
            streamed=True,
            finish_reason="stop",
            usage=Usage(10, 2, 4, 1),
            tokens=CallTokens([1, 2], [3], [-0.25]),
        ),
        assistant("x", reasoning_content="hm"),
        prompt,
    )
    return trace


@FEWER
@given(tokenised())
def test_trace_comes_back_as_it_was(made: list[Turn]) -> None:
    trace = played(made)
    for again in (loads(dumps(trace)), unpack(pack(trace))):
        assert again == trace
        assert again.branches == trace.branches
        assert again.final_branch == trace.final_branch
        assert again.token_sums == trace.token_sums
        for number in range(1, len(made) + 1):
            assert again.full_tokens(number) == trace.full_tokens(number)


@FEWER
@given(tokenised(longest=5), tokenised(longest=3))
def test_trace_that_was_read_goes_on_as_the_written_one_would(made: list[Turn], more: list[Turn]) -> None:
    trace = played(made)
    again = loads(dumps(trace))
    for turn in more:
        for one in (trace, again):
            one.commit_call(turn.call, turn.answer, one.commit_prompt(turn.prompt))
    assert again == trace


def test_every_field_comes_back() -> None:
    trace = whole()
    defaults = Trace(rollout_id="")
    same = [name for name in Trace.__struct_fields__ if getattr(trace, name) == getattr(defaults, name)]
    assert same == ["version"]
    assert loads(dumps(trace)) == trace


def test_form_is_json_with_its_version_and_the_fields_by_name() -> None:
    document = json.loads(dumps(whole()))
    assert document["version"] == 1
    assert list(document) == list(Trace.__struct_fields__)
    assert document["nodes"][1] == {
        "parent": 0,
        "message": {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        "sampled": True,
        "call": 2,
    }
    assert document["calls"][1]["tokens"] == {
        "prompt_ids": [1, 2],
        "ids": [3],
        "logprobs": [-0.25],
        "base": None,
        "shared": 0,
    }


def test_fields_that_a_later_rollbook_added_are_ignored() -> None:
    document = json.loads(dumps(whole()))
    document["later"] = 1
    document["calls"][0]["later"] = 1
    assert loads(json.dumps(document)) == whole()


def test_newer_version_is_refused_with_what_to_do() -> None:
    newer = json.dumps({"version": 2, "conversation": []})
    with pytest.raises(TraceFormatError, match=r"version 2 and this Rollbook reads version 1; read it with .* newer"):
        loads(newer)


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b'{"version": 1}', b'{"version": "1"}', b"\xff", b"[" * 100_000]
)
def test_bytes_that_are_no_trace_are_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError, match="this is no trace"):
        loads(data)


@pytest.mark.parametrize("data", [b"", b"{}", pack(Trace(rollout_id="r"))[:-3]])
def test_bytes_that_are_no_compressed_trace_are_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError, match="no compressed trace"):
        unpack(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nodes", 1, "parent"), 1),
        (("nodes", 1, "parent"), -1),
        (("nodes", 1, "parent"), None),
        (("nodes", 1, "call"), 3),
        (("nodes", 1, "call"), 0),
        (("nodes", 1, "call"), 1),
        (("nodes", 1, "call"), None),
        (("nodes", 0, "sampled"), True),
        (("calls", 1, "number"), 1),
        (("calls", 1, "prompt"), 2),
        (("calls", 1, "prompt"), None),
        (("calls", 1, "node"), 2),
        (("calls", 1, "node"), 0),
        (("calls", 1, "node"), None),
        (("calls", 1, "tokens", "base"), 2),
        (("calls", 1, "tokens", "base"), 0),
    ],
)
def test_damaged_trace_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    document = json.loads(dumps(whole()))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(TraceFormatError, match="the trace is damaged"):
        loads(json.dumps(document))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _json, max_size=4))
def test_any_json_that_a_task_or_a_message_holds_comes_back(fields: dict[str, Any]) -> None:
    trace = Trace(rollout_id="r", task=fields, info=fields)
    trace.commit_prompt([{**fields, "role": "user"}])
    assert loads(dumps(trace)) == trace


@given(st.text(st.sampled_from('a\x00\ud800\udfff\U0001f600\u2028"\\'), max_size=8))
def test_lone_surrogates_come_back(text: str) -> None:
    trace = played([Turn([user(text)], assistant(text), None)])
    trace.info["odd"] = math.nan
    data = dumps(trace)
    data.decode()
    again = loads(data)
    # Two surrogates side by side are one character in JSON.
    assert again.nodes[0].message["content"] == json.loads(json.dumps(text))
    assert again.info == {"odd": None}


class Odd:
    """A thing of user code without a JSON form."""


@pytest.mark.parametrize("text", ["plain", "\ud800"])
def test_values_without_a_json_form_do_not_cost_the_trace(text: str) -> None:
    day = datetime.date(2026, 1, 2)
    info = {"text": text, "odd": Odd(), "nan": math.nan, "day": day, "complex": 1j, 5: "key"}
    again = loads(dumps(Trace(rollout_id="r", info=info)))  # type: ignore[arg-type]  # user code has such keys
    shown = {"text": text, "odd": "<Odd>", "nan": None, "day": "2026-01-02", "complex": "<complex>", "5": "key"}
    assert again.info == shown


def _long(turns: int, *, reads_back: bool) -> Trace:
    """A conversation with texts of 10 kB and prompts that grow by 60 tokens a turn."""
    made: list[Turn] = []
    history: list[MessageDict] = []
    ids: list[int] = []
    for number in range(turns):
        history = [*history, user(f"{number} " + "u" * 10_000)]
        ids = [*ids, *range(50)]
        answer = [1_000 + number] * 10
        tokens = CallTokens(ids, answer, [-0.5] * 10)
        made.append(Turn(history, assistant(f"{number} " + "a" * 10_000), Usage(len(ids), 10), tokens))
        history = [*history, assistant(f"{number} " + "a" * 10_000)]
        # A template that drops the reasoning of earlier turns makes fewer tokens of an answer than were sampled.
        ids = [*ids, *(answer if reads_back else answer[:4])]
    return played(made)


@pytest.mark.parametrize("reads_back", [True, False])
def test_size_grows_with_the_turns_and_not_with_their_square(reads_back: bool) -> None:
    trace = _long(200, reads_back=reads_back)
    assert len(trace.nodes) == 400
    held = [len(call.tokens.prompt_ids) for call in trace.calls if call.tokens and call.tokens.prompt_ids is not None]
    assert held == [50, *[50] * 199]
    assert len(dumps(trace)) < 2.2 * len(dumps(_long(100, reads_back=reads_back)))
    last = trace.full_tokens(200)
    assert last is not None
    assert last.prompt_ids is not None
    assert len(last.prompt_ids) == 200 * 50 + 199 * (10 if reads_back else 4)


def test_packed_trace_is_smaller() -> None:
    trace = _long(20, reads_back=True)
    assert len(pack(trace)) < len(dumps(trace)) / 10
    assert unpack(pack(trace)) == trace


def test_message_is_written_once_however_often_it_is_sent() -> None:
    trace = _long(20, reads_back=True)
    assert dumps(trace).count(b'"7 uuu') == 1


def test_version_is_written_even_where_an_author_changed_it() -> None:
    with pytest.raises(TraceFormatError, match="version 3"):
        loads(dumps(msgspec.structs.replace(whole(), version=3)))
