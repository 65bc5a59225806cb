"""Events that an attempt records of itself, on their way from its runner to its scheduler."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from rollbook_client.events import RECORDABLE, Event, ModelCalled, StageSpan, StageTimed

PackedRecord = tuple[str, bytes]
"""An event's type and its fields as MessagePack."""

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""More than any trace that is worth keeping; a database takes no single value of a gigabyte."""


class RecordError(Exception):
    """An event cannot be sent or read; the message says why."""


_encoder = msgspec.msgpack.Encoder()
_decoders: dict[str, msgspec.msgpack.Decoder[Event]] = {kind.TYPE: msgspec.msgpack.Decoder(kind) for kind in RECORDABLE}


def packed(event: Event) -> PackedRecord:
    """An event as it travels; lone surrogates, which have no form there, become question marks.

    Raises:
        RecordError: it holds what no event holds, or is too large.
    """
    try:
        try:
            data = _encoder.encode(event)
        except UnicodeEncodeError:
            data = _encoder.encode(_without_surrogates(msgspec.to_builtins(event)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"{event.TYPE} cannot be sent: {error}") from error
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(f"{event.TYPE} takes {len(data)} bytes and the limit is {MAX_RECORD_BYTES}; record less")
    return event.TYPE, data


def unpacked(record: PackedRecord) -> Event:
    """The event again.

    Raises:
        RecordError: it is none that may be recorded, or its fields are not of its type.
    """
    kind, data = record
    try:
        return _decoders[kind].decode(data)
    except (KeyError, msgspec.DecodeError, UnicodeError) as error:
        raise RecordError(f"{kind} does not read: {error}") from error


def shifted(event: Event, by_us: int) -> Event:
    """The event with the times of a runner's host by the clock that everything else in the ledger goes by."""
    match event:
        case ModelCalled(first_chunk_at=first):
            return replace(
                event,
                started_at=event.started_at + by_us,
                first_chunk_at=None if first is None else first + by_us,
                ended_at=event.ended_at + by_us,
            )
        case StageTimed():
            return replace(event, spans=shifted_spans(event.spans, by_us))
    return event


def shifted_spans(spans: tuple[StageSpan, ...], by_us: int) -> tuple[StageSpan, ...]:
    """The same for spans."""
    return tuple(StageSpan(span.stage, span.started_at + by_us, span.ended_at + by_us) for span in spans)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _without_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(inner) for inner in value]
    return value
