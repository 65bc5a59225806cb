"""Chunks add up to the answer they were cut from, whatever way their server cuts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.interception.dialects.openai_chat import read_answer, read_request, write_request, write_stream
from rollbook.interception.dialects.openai_chunks import ChunkAssembler
from rollbook.interception.messages import Response
from rollbook.interception.sse import EventParser
from rollbook.traces.calls import CallTokens, Usage

_text = st.text(max_size=12)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish, **more}]}


def put_together(*chunks: Any) -> Response:
    assembler = ChunkAssembler()
    for item in chunks:
        assert assembler.add(item)
    return assembler.response()


@given(
    content=_text,
    reasoning=_text,
    calls=st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), _text), max_size=3),
    cuts=st.integers(1, 5),
)
def test_pieces_add_up(content: str, reasoning: str, calls: list[tuple[str, str, str]], cuts: int) -> None:
    def pieces(text: str) -> list[str]:
        return [text[index::cuts] for index in range(cuts)]  # not in order, so compare with what was sent

    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": piece}) for piece in pieces(reasoning)]
    chunks += [chunk({"content": piece}) for piece in pieces(content)]
    for index, (call_id, name, arguments) in enumerate(calls):
        chunks.append(
            chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": {"name": name}}]})
        )
        chunks += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in pieces(arguments)
        ]
    response = put_together(*chunks, chunk({}, "stop"))
    assert response.message.get("content") == "".join(pieces(content))
    assert response.message.get("reasoning_content") == "".join(pieces(reasoning))
    assert [
        (call["id"], call["type"], call["function"]["name"], call["function"].get("arguments"))
        for call in response.message.get("tool_calls", [])
    ] == [(call_id, "function", name, "".join(pieces(arguments))) for call_id, name, arguments in calls]
    assert response.finish_reason == "stop"


def test_calls_of_two_tools_may_come_interleaved() -> None:
    def piece(index: int, text: str) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    response = put_together(piece(1, "b1"), piece(0, "a1"), piece(1, "b2"), piece(0, "a2"))
    assert [call["function"]["arguments"] for call in response.message["tool_calls"]] == ["a1a2", "b1b2"]


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    def whole(call_id: str) -> dict[str, Any]:
        return chunk({"tool_calls": [{"id": call_id, "function": {"name": "f", "arguments": "{}"}}]})

    assert [call["id"] for call in put_together(whole("a"), whole("b")).message["tool_calls"]] == ["a", "b"]


def test_name_that_every_piece_repeats_is_taken_once() -> None:
    def piece(text: str) -> dict[str, Any]:
        call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": text}}
        return chunk({"tool_calls": [call]})

    (call,) = put_together(piece("{"), piece("}")).message["tool_calls"]
    assert call == {"id": "a", "function": {"name": "f", "arguments": "{}"}}


def test_refusal_and_a_function_call_of_the_old_kind_are_kept() -> None:
    response = put_together(
        chunk({"refusal": "I "}),
        chunk({"refusal": "won't"}),
        chunk({"function_call": {"name": "f", "arguments": "{"}}),
        chunk({"function_call": {"arguments": "}"}}),
    )
    assert response.message["refusal"] == "I won't"
    assert response.message["function_call"] == {"name": "f", "arguments": "{}"}


def test_only_the_first_choice_is_recorded_and_all_must_finish() -> None:
    assembler = ChunkAssembler(choices=2)
    assembler.add({"choices": [{"index": 1, "delta": {"content": "second"}, "finish_reason": "stop"}]})
    assembler.add(chunk({"content": "first"}))
    assert [assembler.finished, assembler.add(chunk({}, "length")), assembler.finished] == [False, True, True]
    assert assembler.response().message["content"] == "first"
    assert assembler.response().finish_reason == "length"


def test_usage_is_taken_from_the_last_chunk_that_has_one() -> None:
    response = put_together(
        {**chunk({"content": "x"}), "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
        chunk({}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    )
    assert response.usage == Usage(input_tokens=5, output_tokens=2)


def test_token_ids_with_a_gap_are_no_token_ids() -> None:
    whole = put_together(chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"}, "stop", token_ids=[2]))
    gap = put_together(chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"}, "stop"))
    assert whole.tokens == CallTokens(ids=[1, 2])
    assert gap.tokens is None


def test_tokens_written_as_ids_are_ids() -> None:
    logprobs = {"content": [{"token": "token_id:42", "logprob": -0.5}]}
    response = put_together({**chunk({"content": "a"}, logprobs=logprobs), "prompt_token_ids": [1, 2]})
    assert response.tokens == CallTokens(prompt_ids=[1, 2], ids=[42], logprobs=[-0.5])


@pytest.mark.parametrize("junk", [None, [], "x", {}, {"choices": 1}, {"choices": [1]}])
def test_junk_is_no_chunk(junk: Any) -> None:
    assert not ChunkAssembler().add(junk)


def call_piece(**fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0, **fields}]})


@pytest.mark.parametrize(
    "chunks",
    [
        [{"choices": [{"index": [], "delta": {"content": "x"}}]}],
        [chunk({"tool_calls": "x"})],
        [chunk({"tool_calls": ["x"]})],
        [chunk({"function_call": "x"})],
        [call_piece(function="x")],
        [call_piece(function={"arguments": {"a": 1}}), call_piece(function={"arguments": "}"})],
        [call_piece(function={"arguments": "{"}), call_piece(function={"arguments": ["}"]})],
        [chunk({"content": "x"}), chunk({"content": ["y"]})],
        [chunk({"content": ["x"]}), chunk({"content": {"y": 1}}), chunk({"content": ["z"]})],
        [chunk({"foo": 5}), chunk({"foo": [1]})],
    ],
)
def test_chunk_that_does_not_fit_is_none(chunks: list[Any]) -> None:
    assembler = ChunkAssembler()
    assert not all(assembler.add(item) for item in chunks)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "x", "stop"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["index", "id"]), inner, max_size=2),
    max_leaves=3,
)
_function = st.fixed_dictionaries({}, optional={"name": _junk, "arguments": _junk}) | _junk
_call = st.fixed_dictionaries({}, optional={"index": _junk, "id": _junk, "function": _function}) | _junk
_delta = st.fixed_dictionaries(
    {}, optional={"content": _junk, "tool_calls": st.lists(_call, max_size=2) | _junk, "function_call": _function}
)
_choice = st.fixed_dictionaries(
    {},
    optional={"index": _junk, "delta": _delta | _junk, "finish_reason": _junk, "logprobs": _junk, "token_ids": _junk},
)
_chunk = st.fixed_dictionaries(
    {"choices": st.lists(_choice | _junk, max_size=2) | _junk}, optional={"usage": _junk, "model": _junk}
)


@given(st.lists(_chunk | _junk, max_size=4))
def test_whatever_comes_is_taken_or_refused(chunks: list[Any]) -> None:
    assembler = ChunkAssembler()
    for item in chunks:
        assembler.add(item)
    json.dumps(assembler.response().message)


def test_stream_waits_for_as_many_choices_as_were_asked_for_and_holds_none_of_them() -> None:
    assembler = ChunkAssembler(choices=10**18)
    assert assembler.add(chunk({}, "stop"))
    assert not assembler.finished


def test_stream_that_is_made_again_is_the_same_answer() -> None:
    message = {
        "role": "assistant",
        "content": "text",
        "reasoning_content": "because",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    written = write_stream(Response(message, "stop"), {"id": "i", "model": "m", "choices": []}, usage=usage)
    assembler = ChunkAssembler()
    events = EventParser().feed(written)
    for found in events[:-1]:
        assert found.data is not None
        assert assembler.add(json.loads(found.data))
    assert events[-1].data == b"[DONE]"
    response = assembler.response()
    assert (response.message, response.finish_reason) == (message, "stop")
    assert response.usage == Usage(input_tokens=1, output_tokens=2)


def test_request_goes_on_with_all_that_it_had() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [], "n": 2, "stop": None}
    assert json.loads(write_request(read_request(json.dumps(body).encode()), with_usage=True)) == body


def test_choice_with_index_0_is_the_first_wherever_it_stands() -> None:
    second, first = ({"index": index, "message": {"content": f"{index}"}} for index in (1, 0))
    _, response = read_answer(json.dumps({"choices": [second, first]}).encode())
    assert response.message["content"] == "0"
