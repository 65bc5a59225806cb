"""Traces that a task's code put something odd into: what stands in its place, so that they can be written."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import msgspec

from rollbook.traces.calls import ModelCall
from rollbook.traces.trace import Rewrite, Span, Trace, TraceError

__all__ = ["REPLACED", "is_sound", "mend_scores", "mended", "odd_scores", "stand_in"]

REPLACED = "rollbook_replaced"
"""Where a trace's `info` says which fields of it had to be left out, each with why."""

_MAX_DEPTH = 200
"""Of what is mended. Readers take more, but not at any depth of their own."""
_SHOWN_CHARS = 200
_SCORES = ("rewards", "metrics", "weights")

_LISTS: dict[str, type] = {
    "errors": TraceError,
    "spans": Span,
    "extra_usage": ModelCall,
    "request_rewrites": Rewrite,
    "response_rewrites": Rewrite,
}


def is_sound(trace: Trace) -> bool:
    """Whether the fields hold what they should as far as the JSON alone would not tell, the scores finite numbers."""
    mappings = type(trace.info) is dict and type(trace.task) is dict
    return mappings and not odd_scores(trace) and all(_is_list(getattr(trace, name), _LISTS[name]) for name in _LISTS)


def odd_scores(trace: Trace) -> dict[str, str]:
    """Scores and weights that are no numbers, as ``rewards['name']``, each with what it is."""
    odd: dict[str, str] = {}
    for field in _SCORES:
        scores = getattr(trace, field)
        if not isinstance(scores, dict):
            odd[field] = _shown(scores)
            continue
        for name, value in scores.items():
            if not isinstance(name, str) or not (_is_score(value) or (value is None and field != "weights")):
                odd[f"{field}[{_shown(name)}]"] = _shown(value)
    return odd


def mend_scores(trace: Trace) -> None:
    """Make scores null that are no numbers; weights that are none are left out."""
    for field in _SCORES:
        setattr(trace, field, _scores(getattr(trace, field), nulls=field != "weights"))


def mended(trace: Trace) -> Trace:
    """A copy that can be written and read: what has no JSON form is a text in angle brackets that says so.

    A number that is not finite is null. A score that is no number is null too, a weight that is none is left out, and
    so is a field that holds something else altogether; ``info["rollbook_replaced"]`` says of these what they were.
    """
    lost = odd_scores(trace)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(Trace):
        value = getattr(trace, field.name)
        if field.name in _SCORES:
            value = _scores(value, nulls=field.name != "weights")
        fitting = _fitting(value)
        try:
            fields[field.name] = msgspec.convert(fitting, field.type)
        except msgspec.ValidationError as error:
            lost[field.name] = str(error)
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
            fields[field.name] = default() if callable(default) else _shown(value)
    if lost:
        fields["info"] = {**fields["info"], REPLACED: lost}
    return Trace(**fields)


def stand_in(value: Any) -> Any:
    """What stands for a value of user code that msgspec does not write: a number of other libraries is one."""
    try:
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
    except Exception:  # whatever its own methods raise
        return f"<{type(value).__name__}>"
    return f"<{type(value).__name__}>"


def _is_list(value: Any, kind: type) -> bool:
    return type(value) is list and all(type(item) is kind for item in value)


def _is_score(value: Any) -> bool:
    return isinstance(value, (int, float)) and _finite(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _scores(value: Any, *, nulls: bool) -> dict[str, float | None]:
    if not isinstance(value, dict):
        return {}
    scores = {str(name): item if _is_score(item) else None for name, item in value.items()}
    return scores if nulls else {name: item for name, item in scores.items() if item is not None}


def _fitting(value: Any, above: tuple[int, ...] = ()) -> Any:
    """`value` of JSON's own types alone; `above` are the containers that it is in."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -(2**64) < value < 2**64 else _shown(value)
    if kind is float:
        return value if _finite(value) else None
    if id(value) in above:
        return f"<a {kind.__name__} that holds itself>"
    if len(above) >= _MAX_DEPTH:
        return f"<a {kind.__name__}, nested deeper than {_MAX_DEPTH}>"
    inside = (*above, id(value))
    if isinstance(value, msgspec.Struct):
        return {name: _fitting(getattr(value, name), inside) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_key(key): _fitting(item, inside) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_fitting(item, inside) for item in value]
    try:
        return _fitting(msgspec.to_builtins(value, enc_hook=stand_in, str_keys=True), inside)
    except Exception:  # of a dataclass in itself, for one, or of what a value's own methods raise
        return f"<{kind.__name__}>"


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    return str(key) if isinstance(key, (int, float)) and not isinstance(key, bool) else f"<{type(key).__name__}>"


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_SHOWN_CHARS]
    except Exception:  # of a value's own making, or an integer too long to be written
        return f"<{type(value).__name__}>"
