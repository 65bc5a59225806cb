"""Names that authors write: whether one may be a slip of another that means something."""

from __future__ import annotations

import difflib
import functools

__all__ = ["near_name"]

_NEAR = 0.8


@functools.lru_cache(maxsize=1024)  # every row of a set has the same fields
def near_name(name: str, known: tuple[str, ...]) -> str | None:
    """The one of the known names that this one may be a slip of; None where it is like none of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    return near[0] if near else None
