"""Events come out of a stream however it was split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollbook.interception.sse import Event, EventParser, event

_line_ends = st.sampled_from([b"\n", b"\r\n"])
_text = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8).map(str.encode)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """An event as it is written, and its data."""
    end = draw(_line_ends)
    lines: list[bytes] = []
    data: list[bytes] = []
    for kind in draw(st.lists(st.sampled_from(["data", "tight", "bare", "comment", "other"]), min_size=1, max_size=4)):
        text = draw(_text)
        if kind == "data":
            lines.append(b"data: " + text)
            data.append(text)
        elif kind == "tight":
            lines.append(b"data:" + text)
            data.append(text.removeprefix(b" "))
        elif kind == "bare":
            lines.append(b"data")
            data.append(b"")
        else:
            lines.append((b": " if kind == "comment" else b"event: ") + text)
    return end.join([*lines, b"", b""]), b"\n".join(data) if data else None


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


@given(st.lists(blocks(), max_size=6), st.lists(st.integers(0, 10_000), max_size=12))
def test_every_split_gives_the_same_events(written: list[tuple[bytes, bytes | None]], cuts: list[int]) -> None:
    stream = b"".join(raw for raw, _ in written)
    parser = EventParser()
    got = [found for piece in split(stream, cuts) for found in parser.feed(piece)]
    assert [found.data for found in got] == [data for _, data in written]
    assert b"".join(found.raw for found in got) == stream
    assert parser.rest() is None


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=12))
def test_no_byte_is_lost_or_made_up(stream: bytes, cuts: list[int]) -> None:
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = stream[3:].lstrip(b"\xef\xbb\xbf")
    parser = EventParser()
    got = [found.raw for piece in split(stream, cuts) for found in parser.feed(piece)]
    rest = parser.rest()
    whole = b"".join(got) + (rest.raw if rest else b"")
    assert stream.startswith(whole)
    assert not stream[len(whole) :].strip()


def test_events_may_end_in_carriage_returns_alone() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\r\rdata: 2\r") == [Event(b"data: 1\r\r", b"1")]
    assert parser.feed(b"\rdata") == [Event(b"data: 2\r\r", b"2")]


def test_byte_order_mark_is_no_part_of_an_event() -> None:
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbfdata: x\n\n") == [Event(b"data: x\n\n", b"x")]


def test_last_event_may_lack_its_blank_line() -> None:
    parser = EventParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.rest() == Event(b"data: [DONE]", b"[DONE]")


def test_event_is_read_as_it_was_written() -> None:
    (found,) = EventParser().feed(event(b'{"a": 1}'))
    assert found.data == b'{"a": 1}'
