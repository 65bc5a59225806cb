"""Configuration objects of workflows and graders: declared fields, checked at construction, free extra fields.

Subclass and annotate to add settings::

    class MyConfig(AgentWorkflowConfig):
        temperature: float = 1.0
        stop_words: list[str] = []
"""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any, ClassVar, Self, dataclass_transform, get_origin, get_type_hints

import msgspec

from rollbook.sdk.values import shown

_IMMUTABLE = (str, int, float, bool, type(None), bytes)


class _Undeclared:
    """Marks a field whose type hint cannot be resolved at run time; such a field is taken unchecked."""


@dataclass_transform(kw_only_default=True)
class _Declared:
    """Keyword-only construction from annotations; unlike a struct it takes mutable defaults and undeclared fields."""

    _declared: ClassVar[dict[str, Any] | None] = None

    def __init__(self, **values: Any) -> None:
        fields = type(self)._fields()
        missing = [name for name in fields if name not in values and not hasattr(type(self), name)]
        if missing:
            names = ", ".join(missing)
            raise ValueError(f"{type(self).__name__} needs a value for: {names}")
        for name, hint in fields.items():
            if name in values:
                setattr(self, name, _checked(values.pop(name), hint, f"{type(self).__name__}.{name}"))
            else:
                default = getattr(type(self), name)
                setattr(self, name, default if type(default) in _IMMUTABLE else copy.deepcopy(default))
        for name, value in values.items():
            setattr(self, name, value)

    @classmethod
    def _fields(cls) -> dict[str, Any]:
        """The declared fields, base classes first, with their resolved types; worked out once per class."""
        known: dict[str, Any] | None = cls.__dict__.get("_declared")
        if known is None:
            try:
                hints = get_type_hints(cls, include_extras=True)
            except (NameError, AttributeError, TypeError):  # a hint imported for type checkers only
                hints = {}
            names = (name for base in reversed(cls.__mro__) for name in _annotated(base))
            known = {name: hints.get(name, _Undeclared) for name in names if not name.startswith("_")}
            cls._declared = known = {name: hint for name, hint in known.items() if get_origin(hint) is not ClassVar}
        return known

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Written out because every run copies its workflow's config and the generic way costs five times as much.
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            clone.__dict__[name] = value if type(value) in _IMMUTABLE else copy.deepcopy(value, memo)
        return clone

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # mutable values are no dict keys

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({inside})"


def _annotated(cls: type) -> list[str]:
    """The names a class annotates itself, in order, whether or not their types can be resolved."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return list(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    return list(inspect.get_annotations(cls))


def _checked(value: Any, hint: Any, what: str) -> Any:
    """Convert `value` to the declared type (numeric strings to numbers, dicts to nested configs) or raise."""
    if hint is _Undeclared or (isinstance(hint, type) and type(value) is hint):
        return value
    if isinstance(hint, type) and issubclass(hint, _Declared) and isinstance(value, dict):
        return hint(**value)
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {error}; got {shown(value)}") from error
    except TypeError:  # a type msgspec cannot check, which a config may hold all the same
        return value


class ConcurrencyConfig(_Declared):
    """How many rollouts one backend runs at a time; None means without a bound.

    Raises ``ValueError`` for fewer than one.
    """

    max_concurrent: int | None = None

    def __init__(self, *, max_concurrent: int | None = None) -> None:
        super().__init__(max_concurrent=max_concurrent)
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError(
                f"max_concurrent must be at least 1, or None for no bound; got {shown(self.max_concurrent)}"
            )


class BaseConfig(_Declared):
    """Base of all configs. Undeclared keyword arguments become attributes; declared ones are type-checked.

    Raises ``ValueError`` for a missing name and for values of another type.
    """

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """What an `AgentWorkflow` is configured with; every run gets a copy of its own."""

    concurrency: ConcurrencyConfig = ConcurrencyConfig()


class GraderConfig(BaseConfig):
    """What a `Grader` is configured with."""

    concurrency: ConcurrencyConfig = ConcurrencyConfig()
