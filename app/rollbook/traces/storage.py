"""A trace as bytes: JSON that says its version, and the same compressed."""

from __future__ import annotations

import json
import logging
import zlib
from typing import Any

import msgspec

from rollbook.traces.mending import is_sound, mended, stand_in
from rollbook.traces.trace import VERSION, Trace
from rollbook_client.jsons import JsonError, loads_lenient

log = logging.getLogger(__name__)

_LEVEL = 4
"""Of zlib. The highest makes traces 5 to 10 per cent smaller still and takes three times as long."""


class TraceFormatError(ValueError):
    """Bytes are no trace, or none that this Rollbook reads."""


class _Version(msgspec.Struct):
    version: int


def dumps(trace: Trace) -> bytes:
    """The trace as JSON, UTF-8. It is written whatever a task's code has put into it: see `mended`."""
    if is_sound(trace):
        try:
            return _written(trace)
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):  # by values of user code
            log.debug("trace %s cannot be written as it is", trace.rollout_id, exc_info=True)
    log.warning("trace %s holds values without a JSON form; they are replaced", trace.rollout_id)
    return _written(mended(trace))


def _written(trace: Trace) -> bytes:
    try:
        return msgspec.json.encode(trace, enc_hook=stand_in)
    except UnicodeEncodeError:  # lone surrogates, which only ASCII escapes can carry
        return _ascii(msgspec.to_builtins(trace, enc_hook=stand_in, str_keys=True))


def loads(data: bytes | str) -> Trace:
    """The trace of what `dumps` wrote. Needs no code of the task. Fields it does not know are ignored.

    Raises:
        TraceFormatError: something else, a damaged trace, or a version that this Rollbook does not know.
    """
    try:
        try:
            version = msgspec.json.decode(data, type=_Version).version
            trace = msgspec.json.decode(data, type=Trace) if version == VERSION else None
        except (msgspec.DecodeError, UnicodeError):
            document = loads_lenient(data)
            version = msgspec.convert(document, _Version).version
            trace = msgspec.convert(document, Trace) if version == VERSION else None
    except (msgspec.ValidationError, JsonError, RecursionError) as error:
        raise TraceFormatError(f"this is no trace: {error}") from error
    if trace is None:
        raise TraceFormatError(
            f"the trace has version {version} and this Rollbook reads version {VERSION}; "
            "read it with the Rollbook that wrote it, or a newer one"
        )
    _check(trace)
    return trace


def pack(trace: Trace) -> bytes:
    """`dumps`, compressed by zlib."""
    return zlib.compress(dumps(trace), _LEVEL)


def unpack(data: bytes) -> Trace:
    """The trace of what `pack` wrote. Raises as `loads` does."""
    try:
        plain = zlib.decompress(data)
    except zlib.error as error:
        raise TraceFormatError(f"this is no compressed trace: {error}") from error
    return loads(plain)


def _check(trace: Trace) -> None:
    """Every number leads somewhere, and backwards, so that no reader of a trace runs astray or for ever."""
    for place, node in enumerate(trace.nodes):
        if node.parent is not None and not 0 <= node.parent < place:
            raise TraceFormatError(f"the trace is damaged: node {place} follows node {node.parent}")
        if node.sampled != (node.call is not None) or not (node.call is None or 0 < node.call <= len(trace.calls)):
            raise TraceFormatError(f"the trace is damaged: node {place} names call {node.call}")
        if node.call is not None and trace.calls[node.call - 1].node != place:
            raise TraceFormatError(f"the trace is damaged: call {node.call} did not write node {place}")
    for number, call in enumerate(trace.calls, 1):
        base = call.tokens.base if call.tokens is not None else None
        fits = call.number == number and (base is None or 0 < base < number)
        fits = fits and all(at is None or 0 <= at < len(trace.nodes) for at in (call.prompt, call.node))
        if not fits or (call.node is not None and trace.nodes[call.node].parent != call.prompt):
            raise TraceFormatError(f"the trace is damaged: call {number} does not fit the messages")


def _ascii(document: Any) -> bytes:
    finite = json.loads(json.dumps(document), parse_constant=lambda name: None)
    return json.dumps(finite, separators=(",", ":")).encode("ascii")
