"""JSON as programs and models send it: msgspec first, the standard library where msgspec refuses (lone surrogates)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def decode(data: bytes) -> Any:
    """The value.

    Raises:
        ValueError: this is no JSON; NaN and Infinity are none either, and neither is nesting beyond all measure.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def encode(value: Any) -> bytes:
    """The shortest bytes; characters that have no UTF-8 form are escaped.

    Raises:
        TypeError, ValueError: the value has no JSON form.
    """
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
