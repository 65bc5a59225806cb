"""Numbers that authors give: each refusal names the field, what it takes, and what it got."""

from __future__ import annotations

import math
from typing import Any

from rollbook.sdk.values import shown

__all__ = ["check_finite", "check_number", "check_whole"]


def check_number(value: Any, name: str, *, unit: str, optional: bool = True) -> None:
    """Raise ``ValueError`` for anything but a finite number above zero, or, if `optional`, None for no limit."""
    if value is None and optional:
        return
    if not (_is_finite(value) and value > 0):
        none = ", or None for no limit" if optional else ""
        raise ValueError(f"{name} must be {unit} above zero{none}; got {shown(value)}")


def check_finite(value: Any, name: str, *, least: float = -math.inf) -> None:
    """Raise ``ValueError`` for anything but a finite number from `least` on."""
    if not (_is_finite(value) and value >= least):
        bound = "" if least == -math.inf else f" from {least:g} on"
        raise ValueError(f"{name} must be a finite number{bound}; got {shown(value)}")


def check_whole(value: Any, name: str, *, least: int, optional: bool = True) -> None:
    """Raise ``ValueError`` for anything but a whole number from `least` on, or, if `optional`, None for no limit."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        none = ", or None for no limit" if optional else ""
        raise ValueError(f"{name} must be a whole number from {least} on{none}; got {shown(value)}")


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
