"""OpenAI's chat completion in chunks, put together into one response."""

from __future__ import annotations

from typing import Any

from rollbook.interception.messages import MessageDict, Response
from rollbook.traces.calls import Usage

from .openai_chat import error_text
from .openai_tokens import read_ids, read_logprobs, read_prompt_ids, tokens_of


class ChunkAssembler:
    """Takes a stream's chunks one by one; the first choice is the one that counts."""

    def __init__(self, *, choices: int = 1) -> None:
        self.first_chunk: dict[str, Any] | None = None
        self.error: str | None = None
        """What the upstream said went wrong, in the middle of its stream."""
        self.usage: Any = None
        """The usage object as it came."""
        self._unfinished = set(range(choices))
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
        return not self._unfinished

    def add(self, chunk: Any) -> bool:
        """Take a chunk; False if it is none. An error object counts as one, and is remembered."""
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
            if not isinstance(choice, dict):
                return False
            self._take(choice)
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
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self._unfinished.discard(index)
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
            if name == "tool_calls" and isinstance(value, list):
                for call in value:
                    if isinstance(call, dict):
                        self._merge_tool_call(call)
                        said = True
            elif name == "function_call" and isinstance(value, dict):
                _merge_function(self._message.setdefault("function_call", {}), value)
                said = True
            elif isinstance(value, str):
                self._text.setdefault(name, []).append(value)
                said = said or value != ""
            elif isinstance(value, list):
                self._message[name] = [*self._message.get(name, ()), *value]
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
            if name == "function" and isinstance(value, dict):
                _merge_function(call.setdefault("function", {}), value)
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
        if name == "arguments" and isinstance(value, str):
            function["arguments"] = function.get("arguments", "") + value
        elif value is not None and not function.get(name):
            function[name] = value
