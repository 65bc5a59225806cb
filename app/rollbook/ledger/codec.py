"""Events to payload bytes and back: msgspec first, the standard library where msgspec refuses.

Lone surrogates have no form in UTF-8; they are stored as ASCII escapes, so that the payload is always valid text and
comes back unchanged. Numbers that are not finite have no JSON form and are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import msgspec

from rollbook_client.events import EVENT_TYPES, Event
from rollbook_client.jsons import JsonError as CodecError
from rollbook_client.jsons import ascii_json, loads, loads_lenient

__all__ = ["UPCASTERS", "CodecError", "ascii_json", "decode", "encode", "loads"]

Document = dict[str, Any]
Upcaster = Callable[[Document], Document]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""For each (type, version) that is not current any more: the step to the next version."""

_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    """The payload of an event as JSON bytes, valid UTF-8.

    Raises:
        CodecError: the event holds something without a JSON form.
    """
    for name in _FORMS[event.TYPE].floats:
        value = getattr(event, name)
        if value is not None and not isfinite(value):  # msgspec would write null
            raise CodecError(f"{event.TYPE}.{name} is {value}, which has no JSON form; record null instead")
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:
        return ascii_json(msgspec.to_builtins(event, builtin_types=(msgspec.Raw,))).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"{event.TYPE} cannot be written as JSON: {error}") from error


def decode(kind: str, version: int, payload: str | bytes) -> Event:
    """The event of a stored payload, brought up to the current version.

    Raises:
        CodecError: an unknown type or version, or a payload that does not fit it.
    """
    form = _FORMS.get(kind)
    if form is None:
        raise CodecError(f"unknown event type {kind!r}; this ledger was written by a newer Rollbook")
    if version == form.event.VERSION:
        try:
            event: Event = form.read(payload)
            return event
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return form.convert(loads_lenient(payload))
    document = loads(payload)
    while version < form.event.VERSION:
        step = UPCASTERS.get((kind, version))
        if step is None:
            raise CodecError(f"{kind} version {version} is older than this Rollbook reads; open it with an older one")
        document = step(document)
        version += 1
    if version > form.event.VERSION:
        raise CodecError(f"{kind} version {version} is newer than this Rollbook knows ({form.event.VERSION})")
    return form.convert(document)


class _Form:
    """How the payloads of one event type are read.

    msgspec reads no `Raw | None`, so an event with such fields is read as a twin in which they are `Raw`, and null
    becomes None afterwards.
    """

    def __init__(self, event: type[Event]) -> None:
        self.event = event
        fields = msgspec.structs.fields(event)
        self.floats = [field.name for field in fields if _mentions(field.type, float)]
        self._raw = {field.name for field in fields if _mentions(field.type, msgspec.Raw)}
        self._nullable = [i for i, f in enumerate(fields) if f.name in self._raw and f.type is not msgspec.Raw]
        self._shape: type[msgspec.Struct] = event
        if self._nullable:
            twin = [_as_declared(f) for f in fields]
            for index in self._nullable:
                twin[index] = (fields[index].name, msgspec.Raw, _NULL)
            self._shape = msgspec.defstruct(event.__name__, twin, gc=False)
        self._decode: Callable[[str | bytes], Any] = msgspec.json.Decoder(self._shape).decode
        self.read: Callable[[str | bytes], Any] = self._read_twin if self._nullable else self._decode

    def _read_twin(self, payload: str | bytes) -> Event:
        return self._finish(self._decode(payload))

    def convert(self, document: Any) -> Event:
        if isinstance(document, dict):
            document = {
                key: msgspec.Raw(ascii_json(value).encode()) if key in self._raw else value
                for key, value in document.items()
            }
        try:
            return self._finish(msgspec.convert(document, self._shape))
        except msgspec.ValidationError as error:
            raise CodecError(f"{self.event.TYPE} does not read: {error}") from error

    def _finish(self, read: Any) -> Event:
        if not self._nullable:
            return read  # type: ignore[no-any-return]
        values = list(msgspec.structs.astuple(read))
        for index in self._nullable:
            if values[index] == _NULL:
                values[index] = None
        return self.event(*values)


def _as_declared(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    return (field.name, field.type) if field.required else (field.name, field.type, field.default)


def _mentions(kind: Any, wanted: type) -> bool:
    return kind is wanted or wanted in getattr(kind, "__args__", ())


_FORMS = {name: _Form(cls) for name, cls in EVENT_TYPES.items()}
