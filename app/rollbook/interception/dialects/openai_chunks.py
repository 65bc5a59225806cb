"""OpenAI's chat completion in chunks, put together into one response."""

from __future__ import annotations

from typing import Any

from rollbook.interception.messages import MessageDict, Response
from rollbook.traces.calls import Usage

from .openai_chat import error_text
from .openai_tokens import read_ids, read_logprobs, read_prompt_ids, tokens_of


class MalformedChunkError(Exception):
    """A chunk whose parts are of the wrong types, or do not fit what came before."""


class ChunkAssembler:
    """Takes a stream's chunks one by one; the first choice is the one that counts."""

    def __init__(self, *, choices: int = 1) -> None:
        self.first_chunk: dict[str, Any] | None = None
        self.error: str | None = None
        """What the upstream said went wrong, in the middle of its stream."""
        self.usage: Any = None
        """The usage object as it came."""
        self._choices = choices
        self._ended: set[int] = set()
        self._finish_reason: str | None = None
        self._model: str | None = None
        self._message: MessageDict = {"role": "assistant", "content": None}
        self._tool_calls: dict[int, MessageDict] = {}
        self._text: dict[str, list[str]] = {}
        self._prompt_ids: list[int] | None = None
        self._ids: _Pieces[int] = _Pieces()
        self._logprob_ids: _Pieces[int] = _Pieces()
        self._logprobs: _Pieces[float] = _Pieces()

    @property
    def finished(self) -> bool:
        """Whether every choice has a finish reason: what still follows is usage and the end."""
        return len(self._ended) >= self._choices

    def add(self, chunk: Any) -> bool:
        """Take a chunk; False if it is none. An error object counts as one, and is remembered."""
        try:
            return self._add(chunk)
        except MalformedChunkError:
            return False

    def _add(self, chunk: Any) -> bool:
        if not isinstance(chunk, dict):
            return False
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            self.error = self.error or error_text(chunk)
            return self.error is not None
        if self.first_chunk is None:
            self.first_chunk = chunk
        if self._model is None and isinstance(model := chunk.get("model"), str):
            self._model = model
        if (usage := chunk.get("usage")) is not None:
            self.usage = usage
        if self._prompt_ids is None:
            self._prompt_ids = read_prompt_ids(chunk, None)
        for choice in choices:
            self._take(_object(choice, "choice"))
        return True

    def response(self) -> Response:
        """What has come so far."""
        message = dict(self._message)
        for name, parts in self._text.items():
            message[name] = "".join(parts)
        if self._tool_calls:
            message["tool_calls"] = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        ids = self._ids.whole if self._ids.whole is not None else self._logprob_ids.whole
        return Response(
            message=message,
            finish_reason=self._finish_reason,
            usage=Usage.parse(self.usage),
            tokens=tokens_of(self._prompt_ids, ids, self._logprobs.whole),
            model=self._model,
        )

    def _take(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            raise MalformedChunkError("a choice's index is no number")
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self._ended.add(index)
        if index != 0:
            return
        if isinstance(finish_reason, str):
            self._finish_reason = finish_reason
        if self._prompt_ids is None:
            self._prompt_ids = read_prompt_ids({}, choice)
        delta = choice.get("delta")
        said = isinstance(delta, dict) and self._merge(delta)
        logprobs, logprob_ids = read_logprobs(choice)
        self._ids.add(read_ids(choice.get("token_ids")), expected=said)
        self._logprobs.add(logprobs, expected=said)
        self._logprob_ids.add(logprob_ids, expected=said)

    def _merge(self, delta: dict[str, Any]) -> bool:
        """Add a delta to the message; whether it brought any of the model's output."""
        said = False
        for name, value in delta.items():
            if value is None or name == "role":
                continue
            if name == "tool_calls":
                for call in _list(value, name):
                    self._merge_tool_call(_object(call, "tool call"))
                    said = True
            elif name == "function_call":
                _merge_function(self._message.setdefault(name, {}), _object(value, name))
                said = True
            elif isinstance(value, str) and self._message.get(name) is None:
                self._text.setdefault(name, []).append(value)
                said = said or value != ""
            elif name in self._text:
                raise MalformedChunkError(f"{name} is text in one chunk and none in another")
            elif isinstance(value, list):
                self._message[name] = [*_list(self._message.get(name) or [], name), *value]
            else:
                self._message[name] = value
        return said

    def _merge_tool_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index")
        if not isinstance(index, int):  # some servers send each call whole, without an index
            last = max(self._tool_calls, default=-1)
            index = last + 1 if last < 0 or piece.get("id") not in (None, self._tool_calls[last].get("id")) else last
        call = self._tool_calls.setdefault(index, {})
        for name, value in piece.items():
            if name == "function" and value is not None:
                _merge_function(call.setdefault("function", {}), _object(value, name))
            elif name != "index" and value is not None and not call.get(name):
                call[name] = value


class _Pieces[T]:
    """A list that comes in pieces, one with each piece of output; with one missing it is no list at all."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._came = False
        self._missed = False

    def add(self, piece: list[T] | None, *, expected: bool) -> None:
        if piece is not None:
            self._came = True
            self._items.extend(piece)
        elif expected:
            self._missed = True

    @property
    def whole(self) -> list[T] | None:
        return self._items if self._came and not self._missed else None


def _merge_function(function: MessageDict, piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "arguments" and value is not None and (so_far := function.get(name)):
            if not isinstance(value, str) or not isinstance(so_far, str):
                raise MalformedChunkError("pieces of a call's arguments are no text")
            function[name] = so_far + value
        elif value is not None and not function.get(name):
            function[name] = value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedChunkError(f"{name} is no object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedChunkError(f"{name} is no list")
    return value
