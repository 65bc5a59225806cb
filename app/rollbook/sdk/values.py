"""Checks and conversions of single values that workflow authors hand over.

Every check returns the value to store or raises ``ValueError``, which LocalBackend reports as a `validation_error`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

MessageDict = dict[str, Any]
"""One chat message: string keys, JSON values."""

_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE_WORDS = frozenset({"false", "f", "no", "n", "off", "0"})


def finite_number(value: Any, what: str) -> float:
    """Return `value` as a finite float: numbers, numeric strings, booleans and anything with ``__float__``.

    Raises ``ValueError`` naming `what` for NaN, infinities and everything that is no number.
    """
    if type(value) is not float:
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{what} must be a finite number, got {shown(value)}") from error
    if not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, got {value}; leave it out if there is no value")
    return float(value)


def message_list(value: Any, what: str) -> list[MessageDict]:
    """Return a new list with a shallow copy of each message, so later changes to the originals stay outside.

    Raises ``ValueError`` for anything but a sequence of mappings with string keys.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise ValueError(f"{what} must be a list of message dicts, got {shown(value)}")
    return [string_keyed(message, f"{what}[{index}]") for index, message in enumerate(value)]


def string_keyed(value: Any, what: str) -> dict[str, Any]:
    """Return a shallow copy of a mapping with string keys; raises ``ValueError`` for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict, got {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{what} must have string keys, got the key {shown(key)}")
    return dict(value)


def optional_text(value: Any, what: str) -> str | None:
    """Return None, or a plain string also for a subclass; raises ``ValueError`` for anything else."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise ValueError(f"{what} must be a string or None, got {shown(value)}")


def flag(value: Any, what: str) -> bool:
    """Return a boolean, also from 0, 1 and the usual words; raises ``ValueError`` for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE_WORDS or word in _FALSE_WORDS:
            return word in _TRUE_WORDS
    elif isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{what} must be true or false, got {shown(value)}")


def shown(value: Any) -> str:
    """A short text for an error message: the shortened repr and the type."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"
