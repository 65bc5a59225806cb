"""Server-sent events: a parser that takes bytes split anywhere, and how one event is written."""

from __future__ import annotations

import re

from msgspec import Struct

CONTENT_TYPE = "text/event-stream"

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n|\r\n\r(?!\n)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(Struct, frozen=True):
    """One block of a stream."""

    raw: bytes
    """As it came, its blank line included: to be passed on."""
    data: bytes | None
    """Its data lines joined by newlines; None where it has none, as a comment that keeps a connection alive."""


class EventParser:
    """Cuts a stream into events; what is not ended by a blank line yet is kept for the next bytes."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0
        self._at_start = True

    @property
    def pending(self) -> int:
        """Bytes of the event that has begun."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        self._pending += data
        if self._at_start and len(self._pending) >= 3:
            self._at_start = False
            if self._pending.startswith(b"\xef\xbb\xbf"):  # a byte order mark is no part of the first field
                del self._pending[:3]
        events = []
        start = 0
        # A blank line may have begun in the last three bytes that were looked at before.
        search_from = max(0, self._searched - 3)
        while match := _BLANK_LINE.search(self._pending, search_from):
            end = match.end()
            if end == len(self._pending) and self._pending[-1:] == b"\r":
                break  # a newline that belongs to it may follow
            events.append(_event(bytes(self._pending[start:end])))
            start = search_from = end
        if start:
            del self._pending[:start]
        self._searched = len(self._pending)
        return events

    def rest(self) -> Event | None:
        """What came after the last blank line, once the stream has ended; None where nothing did."""
        raw = bytes(self._pending)
        self._pending.clear()
        self._searched = 0
        return _event(raw) if raw.strip() else None


def event(data: bytes) -> bytes:
    """An event with one line of data, as OpenAI writes it."""
    return b"data: " + data + b"\n\n"


def _event(raw: bytes) -> Event:
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2 and b"\r" not in raw:
        return Event(raw, raw[6:-2])  # what nearly all events look like
    lines = []
    for line in _LINE_END.split(raw):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return Event(raw, b"\n".join(lines) if lines else None)
