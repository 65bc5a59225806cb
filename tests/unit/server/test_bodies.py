"""Reading, parsing and converting request bodies."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.server.bodies import MAX_DEPTH, convert, parse, read_body
from rollbook.server.errors import ApiError, ClientGoneError
from rollbook_client.messages import CancelRolloutsRequest, RolloutInitRequest


class Sender:
    """A client's body in parts; counts how many were taken."""

    def __init__(self, *parts: bytes, goes_away: bool = False) -> None:
        self.parts = list(parts)
        self.goes_away = goes_away
        self.taken = 0

    async def __call__(self) -> Any:
        if self.taken == len(self.parts):
            assert self.goes_away, "read beyond the body's end"
            return {"type": "http.disconnect"}
        self.taken += 1
        more = self.goes_away or self.taken < len(self.parts)
        return {"type": "http.request", "body": self.parts[self.taken - 1], "more_body": more}


async def read(sender: Sender, *, limit_bytes: int, declared: bytes | None = None) -> bytes:
    scope = {"headers": [] if declared is None else [(b"content-length", declared)]}
    return await read_body(cast(Any, scope), cast(Any, sender), limit_bytes=limit_bytes)


async def test_body_of_several_parts_is_joined() -> None:
    assert await read(Sender(b"a", b"", b"bc"), limit_bytes=10) == b"abc"


async def test_body_up_to_twice_the_limit_is_read_whole() -> None:
    assert await read(Sender(b"x" * 10, b"x" * 10), limit_bytes=10) == b"x" * 20


async def test_body_over_twice_the_limit_is_refused_and_its_rest_left_unread() -> None:
    sender = Sender(*[b"x" * 10] * 9)
    with pytest.raises(ApiError) as caught:
        await read(sender, limit_bytes=10)
    assert caught.value.status == 413
    assert sender.taken == 3


async def test_body_that_is_declared_over_twice_the_limit_is_refused_after_its_first_part() -> None:
    sender = Sender(b"x", b"x" * 40)
    with pytest.raises(ApiError) as caught:
        await read(sender, limit_bytes=10, declared=b"41")
    assert caught.value.status == 413
    assert sender.taken == 1


async def test_whole_body_in_one_part_over_twice_the_limit_is_refused() -> None:
    with pytest.raises(ApiError, match="413"):
        await read(Sender(b"x" * 21), limit_bytes=10)


@pytest.mark.parametrize("declared", [b"", b"many", b"\xb2", b"9" * 5_000])
async def test_strange_length_does_no_harm(declared: bytes) -> None:
    assert await read(Sender(b"x" * 10), limit_bytes=10, declared=declared) == b"x" * 10


async def test_client_that_goes_away_within_its_body_is_noticed() -> None:
    with pytest.raises(ClientGoneError):
        await read(Sender(b"x", goes_away=True), limit_bytes=10)


def nested(depth: int, *, kind: str = "list") -> bytes:
    return b"[" * depth + b"]" * depth if kind == "list" else b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_depth_is_counted_exactly(kind: str) -> None:
    parse(nested(MAX_DEPTH, kind=kind))
    with pytest.raises(ApiError) as caught:
        parse(nested(MAX_DEPTH + 1, kind=kind))
    assert caught.value.status == 400
    assert "1,000" in str(caught.value.detail)


@pytest.mark.parametrize("depth", [5_000, 200_000])
def test_absurd_depth_is_a_400_as_well(depth: int) -> None:
    with pytest.raises(ApiError, match="400"):
        parse(nested(depth))


def test_brackets_side_by_side_and_in_texts_are_not_depth() -> None:
    document = {"text": "[{" * 5_000, "flat": [[]] * 5_000}
    assert parse(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} {}",
        b"{'a': 1}",
        b'{"a": "\x01"}',
        b'{"a": "\xff"}',
        b"\xff",
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e999]",
        b"[-1e999]",
        b"[" + b"9" * 5_000 + b"]",
        b"[1" + b"0" * 400 + b".0]",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_bytes_that_are_no_json_with_finite_numbers_are_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse(body)
    assert caught.value.status == 400
    assert len(str(caught.value.detail)) < 300


def test_lone_surrogates_and_a_byte_order_mark_are_read() -> None:
    assert parse(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    assert parse(b"\xef\xbb\xbf[1]") == [1]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_comes_out_as_it_went_in(document: Any) -> None:
    assert parse(json.dumps(document).encode()) == document


def test_all_missing_fields_are_named_and_no_value_is_quoted() -> None:
    with pytest.raises(ApiError) as caught:
        convert({"llm_api_key": "sk-secret"}, RolloutInitRequest)
    assert caught.value.status == 422
    assert not isinstance(caught.value.detail, str)
    assert [(item.loc, item.type) for item in caught.value.detail] == [
        (("body", "initial_messages"), "missing"),
        (("body", "chat_completions_url"), "missing"),
        (("body", "rollout_id"), "missing"),
    ]
    assert "sk-secret" not in str(caught.value.detail)


@pytest.mark.parametrize(
    "document, loc",
    [
        ([], ("body",)),
        (None, ("body",)),
        ({"ids": "a"}, ("body", "ids")),
        ({"ids": ["a", 1]}, ("body", "ids", 1)),
        ({"all": 1}, ("body", "all")),
    ],
)
def test_wrong_type_is_located(document: Any, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(ApiError) as caught:
        convert(document, CancelRolloutsRequest)
    assert not isinstance(caught.value.detail, str)
    assert [item.loc for item in caught.value.detail] == [loc]
    assert caught.value.detail[0].type == "type_error"


LONE = "\ud800"
COMPLETE = {"initial_messages": [], "chat_completions_url": "u", "rollout_id": "r"}


@pytest.mark.parametrize(
    "document, loc",
    [
        (LONE, ("body",)),
        ({**COMPLETE, "initial_messages": LONE}, ("body", "initial_messages")),
        ({**COMPLETE, "initial_messages": [{}, LONE]}, ("body", "initial_messages", 1)),
        ({**COMPLETE, "agent_timeout_sec": LONE, LONE: 1}, ("body", "agent_timeout_sec")),
        ({**COMPLETE, "rollout_id": LONE}, ("body", "rollout_id")),
    ],
    ids=repr,
)
def test_lone_surrogate_in_the_wrong_place_is_located(document: Any, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(ApiError) as caught:
        convert(document, RolloutInitRequest)
    assert caught.value.status == 422
    assert not isinstance(caught.value.detail, str)
    assert [item.loc for item in caught.value.detail] == [loc]


def test_lone_surrogate_in_a_text_and_in_an_unknown_fields_name_is_taken() -> None:
    request = convert({**COMPLETE, "label": LONE, LONE: LONE, "metadata": {LONE: LONE}}, RolloutInitRequest)
    assert (request.label, request.metadata) == (LONE, {LONE: LONE})


def test_numbers_written_as_text_are_read_only_where_asked_for() -> None:
    class Page(msgspec.Struct):
        limit: int = 1

    assert convert({"limit": "5"}, Page, strict=False).limit == 5
    with pytest.raises(ApiError, match="422"):
        convert({"limit": "5"}, Page)
