"""Values of user code as JSON: what is plain already, what can be made plain, what has no JSON form."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

# Insertion order and the shortest form, as msgspec writes; ASCII only, so lone surrogates survive as escapes.
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_encoder = msgspec.json.Encoder()


MAX_DEPTH = 1_000
"""Nesting that a JSON reader can be expected to take; admissions are held to the same."""


def is_plain(value: Any) -> bool:
    """Whether `value` holds nothing but JSON's own types and finite numbers. It must have no cycles.

    msgspec alone does not tell: it writes NaN as null and bytes as base64. Raises ``ValueError`` for data nested
    deeper than `MAX_DEPTH`.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                deeper.extend(item.values())
            elif kind is list or kind is tuple:
                deeper.extend(item)
            elif kind is float:
                if item - item != 0.0:  # true for NaN and the infinities only
                    return False
            elif not (kind is str or kind is int or kind is bool or item is None):
                return False
        if not deeper:
            return True
        level = deeper
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def encode_plain(value: Any) -> tuple[bytes, bool]:
    """Encode plain data; the second value says whether it holds lone surrogates, which then are ASCII escapes.

    Raises ``ValueError`` for integers of absurd length, ``RecursionError`` for too deep nesting and cycles.
    """
    try:
        return _encoder.encode(value), False
    except UnicodeEncodeError:
        return _ascii_encoder.encode(value).encode("ascii"), True


def plain(value: Any) -> Any:
    """Return `value` with everything that has an obvious JSON form converted to it.

    That is subclasses of JSON's types, mappings, sequences, sets, UTF-8 bytes, number types, pydantic models, and
    what msgspec knows (dates, UUIDs, decimals, enums, dataclasses, structs). Raises ``ValueError`` or ``TypeError``
    for NaN, infinities and objects, ``RecursionError`` for cycles.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, numbers.Real):
        return _real(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (Sequence, Set)):
        return [plain(item) for item in value]
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump(mode="json"))
    return msgspec.to_builtins(value, str_keys=True)


def fit(value: Any, dropped: set[str]) -> Any:
    """Return `value` without what has no JSON form; the type names of what was left out are added to `dropped`.

    Numbers of other libraries become int or float. Returns `DROPPED` if nothing is left of the value itself.
    Raises ``RecursionError`` for cycles.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return _fit_mapping(value, dropped)
    if isinstance(value, (list, tuple)):
        return [item for raw in value if (item := fit(raw, dropped)) is not DROPPED]
    if getattr(value, "ndim", None) == 0 and callable(item := getattr(value, "item", None)):
        value = item()  # a scalar of numpy, or of a library like it
        if isinstance(value, bool):
            return value
    if isinstance(value, numbers.Real):
        try:
            return _real(value)
        except (ValueError, OverflowError):
            dropped.add(f"non-finite {type(value).__name__}")
            return DROPPED
    dropped.add(type(value).__name__)
    return DROPPED


DROPPED = object()
"""What `fit` returns for a value without JSON form."""


def _fit_mapping(value: Mapping[Any, Any], dropped: set[str]) -> dict[str, Any]:
    fitted: dict[str, Any] = {}
    for raw_key, raw_item in value.items():
        try:
            key = _key(raw_key)
        except (TypeError, ValueError, OverflowError):
            dropped.add(f"key of type {type(raw_key).__name__}")
            continue
        if (item := fit(raw_item, dropped)) is not DROPPED:
            fitted[key] = item
    return fitted


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bool) or not isinstance(key, numbers.Real):
        raise TypeError(f"{type(key).__name__} is no key of a JSON object")
    return str(_real(key))


def _real(value: numbers.Real) -> int | float:
    """A finite real number as one of Python's own; raises ``ValueError`` or ``OverflowError`` for any other."""
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} has no JSON form")
    return number
