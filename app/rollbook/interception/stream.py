"""A streamed answer as its call sees it: what may be passed on, what waits for the commit, what it adds up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollbook.traces.calls import CallError

from . import json_codec, sse
from .dialects import openai_chat
from .dialects.openai_chunks import ChunkAssembler
from .messages import Request, Response


class AnswerStream:
    """The events of an answer: what may be passed on, what is held back, and what they add up to.

    What is no chunk of an answer goes through `hide` first: servers like to repeat a key that they refuse.
    """

    def __init__(self, request: Request, *, drop_usage: bool, hide: Callable[[bytes], bytes]) -> None:
        self.done = False
        self.size = 0
        self._parser = sse.EventParser()
        self._assembler = ChunkAssembler(choices=openai_chat.choices_asked(request))
        self._drop_usage = drop_usage
        self._hide = hide
        self._garbage: str | None = None
        self._events: list[bytes] = []
        self._held_from: int | None = None
        """The index from which on events wait for the turn to be committed."""

    def take(self, data: bytes) -> bool:
        """Take bytes; whether they completed any chunk of the answer."""
        self.size += len(data)
        taken = [self._take_event(event) for event in self._parser.feed(data)]
        return True in taken

    def end(self) -> None:
        """The stream has ended; a last event may lack its blank line, or be half an event."""
        event = None if self.done else self._parser.rest()
        if event is None:
            return
        whole = event.data is None or event.data.strip() == openai_chat.DONE or self._decoded(event.data) is not None
        if whole:
            self._take_event(event)
        else:
            self._events.append(self._hide(event.raw))

    def release(self) -> bytes:
        """What may be passed on now."""
        until = len(self._events) if self._held_from is None else self._held_from
        data = b"".join(self._events[:until])
        del self._events[:until]
        if self._held_from is not None:
            self._held_from = 0
        return data

    def held(self) -> bytes:
        """All that was not passed on."""
        data = b"".join(self._events)
        self._events.clear()
        return data

    def failure(self) -> CallError | None:
        """What is wrong with the stream as it ended; None if it is a whole answer."""
        if self._assembler.error is not None:
            return CallError("broken_stream", f"the model server broke off: {self._assembler.error}")
        if self._garbage is not None:
            return CallError("garbage", self._garbage)
        if not self.done and not self._assembler.finished:
            return CallError("broken_stream", "the stream ended without a finish reason and without [DONE]")
        if self._assembler.first_chunk is None:
            return CallError("garbage", "the stream has no chunk of an answer")
        return None

    def response(self) -> Response:
        """What the chunks add up to."""
        return self._assembler.response()

    def made_again(self, response: Response) -> bytes:
        """A stream of another text."""
        usage: Any = None if self._drop_usage else self._assembler.usage
        return openai_chat.write_stream(response, self._assembler.first_chunk or {}, usage=usage)

    def _take_event(self, event: sse.Event) -> bool:
        if self.done:
            return False
        if event.data is None:
            self._events.append(self._hide(event.raw))
            return False
        if event.data.strip() == openai_chat.DONE:
            self.done = True
            self._hold()
            self._events.append(event.raw)
            return False
        chunk = self._decoded(event.data)
        finished_before = self._assembler.finished
        is_chunk = self._assembler.add(chunk)
        if not is_chunk and self._garbage is None:
            self._garbage = "the stream has an event that is no chunk of an answer"
        if self._assembler.finished and not finished_before:
            self._hold()
        if not (self._drop_usage and _is_usage_only(chunk)):
            is_answer = is_chunk and self._assembler.error is None
            self._events.append(event.raw if is_answer else self._hide(event.raw))
        return True

    def _decoded(self, data: bytes) -> Any:
        try:
            return json_codec.decode(data)
        except ValueError:
            return None

    def _hold(self) -> None:
        if self._held_from is None:
            self._held_from = len(self._events)


def _is_usage_only(chunk: Any) -> bool:
    return isinstance(chunk, dict) and chunk.get("choices") == [] and chunk.get("usage") is not None
