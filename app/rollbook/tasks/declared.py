"""What a task class declares, looked at when it is loaded: its parts, and names that are nearly those of the base.

A part of another kind, and a method that nobody calls because of its name, would switch something off silently.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

from rollbook.sdk.values import shown
from rollbook.tasks.hooks import MARKS
from rollbook.tasks.judge import Judge
from rollbook.tasks.methods import check_method, check_plain, place_of
from rollbook.tasks.names import near_name
from rollbook.tasks.sources import check_source
from rollbook.tasks.toolsets import Toolset

__all__ = ["check_declared", "check_parts"]

log = logging.getLogger(__name__)

_METHODS = ("setup", "finalize", "rows", "new_state")
_PARTS: dict[str, type] = {"toolsets": Toolset, "judges": Judge}


def check_declared(cls: type, base: type, *, data: type) -> None:
    """Raise ``TypeError`` where a subclass of `base`, the class of tasks, is not written as it must be.

    A name that may be meant, though it is near to one of the base, is only warned of.
    """
    check_parts(cls.__name__, cls)
    if _overrides(cls, base, "setup"):
        check_method(cls, "setup", takes=("data", "runtime"), data=data)
    if _overrides(cls, base, "finalize"):
        check_method(cls, "finalize", takes=("data", "runtime", "trace"), data=data)
    if _overrides(cls, base, "rows"):
        check_plain(cls, "rows", "write `def rows(self)` and yield the rows, or return a list of them")
    if _overrides(cls, base, "new_state"):
        check_plain(cls, "new_state", "write `def new_state(self)`, and fill the state in `setup`")
    check_source(cls)
    for name, value in vars(cls).items():
        if not name.startswith("_") and not hasattr(base, name) and not getattr(value, MARKS, ()):
            _check_name(cls, base, name, value=value)
        _tell_of_override(cls, name, value=value)


def check_parts(who: str, task: Any) -> None:
    """Raise ``TypeError`` where the toolsets or judges of a task, or of a class of them, are none."""
    for name, kind in _PARTS.items():
        found = inspect.getattr_static(task, name)
        if hasattr(found, "__get__"):  # a property: the object says
            if isinstance(task, type):
                continue
            found = getattr(task, name)
        whole = isinstance(found, Sequence) and not isinstance(found, (str, bytes))
        items = list(found) if whole else [found]
        if not whole or any(not isinstance(item, kind) for item in items):
            wrong = next((item for item in items if not isinstance(item, kind)), items[0])
            raise TypeError(
                f"{who}.{name} is {shown(found)}, which is no tuple of {kind.__name__} objects; "
                f"write `{name} = ({_object(wrong, kind)},)`"
            )


def _overrides(cls: type, base: type, name: str) -> bool:
    return inspect.getattr_static(cls, name) is not inspect.getattr_static(base, name)


def _check_name(cls: type, base: type, name: str, *, value: Any) -> None:
    flat = _flat(name)
    for part, kind in _PARTS.items():
        if flat in (part, part.removesuffix("s")) and _holds(value, kind):
            raise TypeError(
                f"{cls.__name__}.{name} is not looked at: call it `{part}`, a tuple of {kind.__name__} objects"
            )
    if not inspect.isroutine(value):
        return
    missing = tuple(known for known in _METHODS if not _overrides(cls, base, known))
    for known in missing:
        if flat == _flat(known):
            raise TypeError(f"{cls.__name__}.{name} is never called: call it `{known}`{place_of(value)}")
    if (near := near_name(name, missing)) is not None:
        log.warning(
            "%s.%s is not called by Rollbook; if it is meant to be `%s`, call it so%s",
            cls.__name__,
            name,
            near,
            place_of(value),
        )


def _tell_of_override(cls: type, name: str, *, value: Any) -> None:
    """Warn of a method that takes the place of an inherited hook and is another one or none: that may be meant."""
    above = next((vars(one)[name] for one in cls.__mro__[1:] if name in vars(one)), None)
    before, now = getattr(above, MARKS, ()), getattr(value, MARKS, ())
    if not before or not inspect.isroutine(value) or before[0].kind in {mark.kind for mark in now}:
        return
    what = f"a @{now[0].kind}" if now else "no hook, for it has no decorator,"
    log.warning(
        "%s.%s is %s and replaces an inherited @%s; where that is not meant, write @%s above it%s",
        cls.__name__,
        name,
        what,
        before[0].kind,
        before[0].kind,
        place_of(value),
    )


def _flat(name: str) -> str:
    """A name without what is only a matter of spelling: ``set_up``, ``setUp``, ``finalise``."""
    return name.lower().replace("_", "").replace("ise", "ize")


def _holds(value: Any, kind: type) -> bool:
    items = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
    return any(isinstance(item, kind) or (isinstance(item, type) and issubclass(item, kind)) for item in items)


def _object(wrong: Any, kind: type) -> str:
    """How an object is written in the place of what is none, or stands alone."""
    if isinstance(wrong, type) and issubclass(wrong, kind):
        return f"{wrong.__name__}()" if kind is Toolset else f"{wrong.__name__}(…)"
    if isinstance(wrong, kind):
        return f"{type(wrong).__name__}(…)"
    if kind is Toolset and inspect.isroutine(wrong):
        return f"Toolset({wrong.__name__})"
    return f"{kind.__name__}(…)"
