"""Events to payload bytes and back: msgspec first, the standard library where msgspec refuses.

Lone surrogates have no form in UTF-8; they are stored as ASCII escapes, so that the payload is always valid text and
comes back unchanged. Numbers that are not finite have no JSON form and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from rollbook_client.events import EVENT_TYPES, Event

Document = dict[str, Any]
Upcaster = Callable[[Document], Document]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""For each (type, version) that is not current any more: the step to the next version."""

_encoder = msgspec.json.Encoder()
_decoders: dict[str, msgspec.json.Decoder[Event]] = {
    name: msgspec.json.Decoder(cls) for name, cls in EVENT_TYPES.items()
}


class CodecError(ValueError):
    """A payload cannot be written or read; the message names the event type and why."""


def encode(event: Event) -> bytes:
    """The payload of an event as JSON bytes, valid UTF-8.

    Raises:
        CodecError: the event holds something without a JSON form.
    """
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:
        return ascii_json(msgspec.to_builtins(event, builtin_types=(msgspec.Raw,))).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"{event.TYPE} cannot be written as JSON: {error}") from error


def ascii_json(value: Any) -> str:
    """JSON text with every non-ASCII character escaped; `msgspec.Raw` values are spliced in as they are.

    Raises:
        CodecError: the value holds a number that is not finite or an object without a JSON form.
    """

    def raw(part: object) -> object:
        if isinstance(part, msgspec.Raw):
            return loads(bytes(part))
        raise TypeError(f"{type(part).__name__} has no JSON form")

    try:
        return json.dumps(value, default=raw, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"no JSON form: {error}") from error


def loads(data: bytes | str) -> Any:
    """Any JSON document; the standard library reads what msgspec refuses (lone surrogates).

    Raises:
        CodecError: not JSON, or numbers that are not finite.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _loads_lenient(data)


def _loads_lenient(data: bytes | str) -> Any:
    def refuse(name: str) -> Any:
        raise CodecError(f"{name} is not JSON")

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise CodecError(f"{text} is out of the range of numbers")
        return value

    try:
        return json.loads(data, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error


def decode(kind: str, version: int, payload: str | bytes) -> Event:
    """The event of a stored payload, brought up to the current version.

    Raises:
        CodecError: an unknown type or version, or a payload that does not fit it.
    """
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        raise CodecError(f"unknown event type {kind!r}; this ledger was written by a newer Rollbook")
    if version == cls.VERSION:
        try:
            return _decoders[kind].decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _convert(_loads_lenient(payload), cls)
    document = loads(payload)
    while version < cls.VERSION:
        document = UPCASTERS[kind, version](document)
        version += 1
    if version > cls.VERSION:
        raise CodecError(f"{kind} version {version} is newer than this Rollbook knows ({cls.VERSION})")
    return _convert(document, cls)


def _convert(document: Any, cls: type[Event]) -> Event:
    def hook(kind: type, value: object) -> object:
        if kind is msgspec.Raw:
            return msgspec.Raw(ascii_json(value).encode())
        raise TypeError(f"cannot read a {kind.__name__}")

    raw = {field.name for field in msgspec.structs.fields(cls) if _holds_raw(field.type)}
    if isinstance(document, dict):
        document = {
            key: msgspec.Raw(ascii_json(value).encode()) if key in raw and value is not None else value
            for key, value in document.items()
        }
    try:
        return msgspec.convert(document, cls, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise CodecError(f"{cls.TYPE} does not read: {error}") from error


def _holds_raw(kind: Any) -> bool:
    return kind is msgspec.Raw or msgspec.Raw in getattr(kind, "__args__", ())
