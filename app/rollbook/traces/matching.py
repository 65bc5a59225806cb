"""Whether two chat messages are the same one, seen through what clients do to a message that they send back."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

MessageDict = dict[str, Any]
"""An OpenAI chat message: the form that every dialect is brought to."""

IGNORED_FIELDS = frozenset(
    {
        "annotations",
        "audio",
        "cache_control",
        "parsed",
        "provider_specific_fields",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "thinking_blocks",
    }
)
"""What clients add to an answer, or leave out, when they send it back as history."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def plainly_same(one: Mapping[str, Any], other: Mapping[str, Any], /) -> bool:
    """Whether two messages are seen to be the same without making their keys; False leaves it open.

    Comparing long texts takes much less time than hashing them, and nearly all of a history is as it was.
    """
    for name in one.keys() | other.keys():
        mine, theirs = one.get(name), other.get(name)
        same = type(mine) is type(theirs) and mine == theirs  # 0 is not False
        if not same and name not in IGNORED_FIELDS and not (_is_empty(mine) and _is_empty(theirs)):
            return False
    return True


class MessageKeys:
    """Makes the keys by which messages are compared; it remembers the tool-call arguments it has read.

    Two messages have the same key when they differ only in fields that are absent, null or empty in one of them, in
    `IGNORED_FIELDS`, in the spelling of a tool call's arguments as JSON, in a tool call's `index`, in a `type` of
    "function" that is written or left out, in `cache_control` marks, and in text given as a list of one text part.
    """

    def __init__(self) -> None:
        self._arguments: dict[str, str | None] = {}

    def of(self, message: Mapping[str, Any], /) -> Hashable:
        """The key of a message. Raises ``TypeError`` for values that have no JSON form."""
        parts = []
        for name in sorted(message):
            value = message[name]
            if type(value) is not str and value:
                value = self._plain(name, value)
            if not _is_empty(value) and name not in IGNORED_FIELDS:
                parts.append((name, value if type(value) is str else _json(value)))
        return tuple(parts)

    def _plain(self, name: str, value: Any) -> Any:
        if name == "content" and isinstance(value, list):
            parts = [_without_marks(part) for part in value]
            match parts:
                case [{"type": "text", "text": str(text), **others}] if not others:
                    return text
            return parts
        if name == "tool_calls" and isinstance(value, list):
            return [self._tool_call(call) if isinstance(call, dict) else call for call in value]
        return value

    def _tool_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        plain = {name: item for name, item in call.items() if not _is_empty(item) and name != "index"}
        if plain.get("type") == "function":
            del plain["type"]
        function = plain.get("function")
        if isinstance(function, dict):
            plain["function"] = {
                name: item
                for name, raw in function.items()
                if not _is_empty(item := self._read(raw) if name == "arguments" else raw)
            }
        return plain

    def _read(self, arguments: Any) -> str | None:
        """Arguments in one spelling, those that are no JSON as they are; None for those that say nothing."""
        if not isinstance(arguments, str):
            return _spelling(arguments) if arguments else None
        if arguments not in self._arguments:
            self._arguments[arguments] = _normal(arguments)
        return self._arguments[arguments]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _normal(arguments: str) -> str | None:
    try:
        read = json.loads(arguments, parse_float=_number, parse_constant=str)
    except (ValueError, RecursionError):
        return arguments or None  # no JSON: compared as the text it is
    return None if _is_empty(read) else _spelling(read)


def _spelling(value: Any) -> str:
    return _json(value).decode()


def _number(text: str) -> int | float | str:
    """A number as JavaScript writes it: 1.0 is 1. Past the range of floats it stays the text."""
    number = float(text)
    if math.isinf(number):
        return text
    return int(number) if number.is_integer() else number


def _without_marks(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: item for name, item in part.items() if item is not None and name != "cache_control"}


def _json(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # lone surrogates
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
