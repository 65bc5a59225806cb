"""How methods of tasks and harnesses get what they ask for: by the annotated type of a parameter, or by its name."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

from msgspec import Struct

from rollbook.interception.messages import Request, Response
from rollbook.tasks.data import TaskData
from rollbook.tasks.runtimes.base import Runtime
from rollbook.traces.trace import Trace

__all__ = ["Given", "Missing", "Parameter", "Source", "arguments_of", "asked_for", "parameters_of", "tool_parameters"]

type Source = Literal["data", "trace", "runtime", "state", "request", "response"]

BY_NAME: frozenset[str] = frozenset({"data", "trace", "runtime", "state"})
"""Parameters of these names need no annotation where nothing is routed by it."""

_OURS: dict[str, type] = {
    "Request": Request,
    "Response": Response,
    "Runtime": Runtime,
    "TaskData": TaskData,
    "Trace": Trace,
}
"""For annotations that name a class which is imported for type checkers only."""


class Given(Struct, kw_only=True):
    """What one rollout has to give to the methods of `owner`, its task or its harness."""

    owner: object
    data: TaskData
    trace: Trace
    runtime: Runtime | None = None
    """None where there is none, as when a stored trace is scored again."""
    state: Any = None
    """The rollout's own object, made by `Task.new_state`."""
    hooks_at_work: list[str] = []
    """Those that have been called and have not returned, as messages name them."""


class Missing(Exception):
    """A method asks for what this rollout cannot give."""


class Parameter(Struct, frozen=True):
    """One parameter of a method and what it gets."""

    name: str
    source: Source
    optional: bool = False
    """Whether None will do."""
    typed: bool = True
    """Whether its annotation says so; False where only its name does."""
    positional_only: bool = False


class _Unresolved(Struct, frozen=True):
    """An annotation whose names cannot be found."""

    text: str


_MODELS = "str, int or list[str] for what the model gives, or Runtime, Trace or the TaskData for what the rollout does"


class _Absent:
    """Stands for no annotation; None is one."""


_ABSENT: Final = _Absent()


def parameters_of(
    function: Callable[..., Any], *, who: str, state_type: object = None, example: str
) -> tuple[Parameter, ...]:
    """What each parameter of a method gets, `self` left out; those with a default of their own may be left alone.

    Raises ``TypeError``, beginning with `who`, for a parameter that nothing fits; `example` says what would.
    """
    found: list[Parameter] = []
    parameters = list(_signature(function).parameters.values())
    if not parameters:
        raise TypeError(f"{who} takes no self; make that its first parameter")
    for parameter in parameters[1:]:
        hint = _hint(parameter, function, who=who)
        source = _source(hint, state_type=state_type)
        typed = source is not None
        if source is None and parameter.name in BY_NAME:
            source = cast("Source", parameter.name)
        if source is not None:
            found.append(_parameter(parameter, source, hint=hint, typed=typed))
        elif parameter.default is parameter.empty:
            raise TypeError(f"{who} {_complaint(parameter.name, hint, example=example)}")
    return tuple(found)


def asked_for(function: Callable[..., Any], *, who: str) -> list[tuple[inspect.Parameter, Source | None]]:
    """All parameters of a function, each with what its annotation or else its name asks for, None for neither."""
    asked: list[tuple[inspect.Parameter, Source | None]] = []
    for parameter in _signature(function).parameters.values():
        source = None
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            source = _source(_hint(parameter, function, who=who), state_type=None)
            if source is None and parameter.name in BY_NAME:
                source = cast("Source", parameter.name)
        asked.append((parameter, source))
    return asked


def tool_parameters(
    function: Callable[..., Any], *, who: str
) -> tuple[tuple[Parameter, ...], dict[str, tuple[Any, Any]]]:
    """What a rollout gives to a function that is a tool, and the types and defaults of what the model gives.

    The rollout's are those annotated as TaskData, Runtime or Trace, and one named `state` without annotation: the
    other names may well be the model's. Raises ``TypeError``, beginning with `who`, for a parameter that neither can
    give.
    """
    found: list[Parameter] = []
    own: dict[str, tuple[Any, Any]] = {}
    for parameter in _signature(function).parameters.values():
        hint = _hint(parameter, function, who=who)
        source = _source(hint, state_type=None)
        if hint is _ABSENT and parameter.name == "state":
            source = "state"
        if source in ("request", "response"):
            raise TypeError(f"{who} asks for a {source.title()}; a tool is called between model calls, without one")
        if source is not None:
            found.append(_parameter(parameter, source, hint=hint, typed=hint is not _ABSENT))
        elif hint is _ABSENT or isinstance(hint, _Unresolved):
            raise TypeError(f"{who} {_complaint(parameter.name, hint, example=_MODELS)}")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{who} takes {parameter.name!r} by position only; the model gives arguments by name")
        else:
            own[parameter.name] = (hint, parameter.default)
    return tuple(found), own


def arguments_of(
    parameters: tuple[Parameter, ...], given: Given, *, boundary: Request | Response | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The values for these parameters; raises `Missing` for one that there is not."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.source in ("request", "response"):
            value: Any = boundary
        else:
            value = getattr(given, parameter.source)
        if value is None and not parameter.optional and parameter.source == "runtime":
            raise Missing(
                f"it asks for the runtime, and there is none (a stored trace is scored without one); "
                f"annotate the parameter {parameter.name} as `Runtime | None` and do without it where it is None"
            )
        if parameter.positional_only:
            positional.append(value)
        else:
            named[parameter.name] = value
    return positional, named


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type that an annotation means; `_Unresolved` where its names cannot be found."""
    if not isinstance(annotation, (str, typing.ForwardRef)):
        return annotation
    text = annotation if isinstance(annotation, str) else annotation.__forward_arg__

    def probe() -> None: ...

    # One at a time, so that a name which is there for type checkers only spoils no other parameter.
    probe.__annotations__ = {"parameter": text}
    function = getattr(function, "__func__", function)
    names = getattr(function, "__globals__", {})
    for known in (names, _OURS | names):
        try:
            return typing.get_type_hints(probe, globalns=known, localns=known, include_extras=True)["parameter"]
        except (NameError, AttributeError, TypeError, SyntaxError):
            continue
    return _Unresolved(text)


def _hint(parameter: inspect.Parameter, function: Callable[..., Any], *, who: str) -> Any:
    """The type a parameter is annotated with, `_ABSENT` where it is not."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{who} takes {parameter}; write out the parameters that it needs")
    if parameter.annotation is parameter.empty:
        return _ABSENT
    return _resolved(parameter.annotation, inspect.unwrap(function))


def _parameter(parameter: inspect.Parameter, source: Source, *, hint: Any, typed: bool) -> Parameter:
    return Parameter(
        parameter.name,
        source,
        optional=parameter.default is None or _takes_none(hint),
        typed=typed,
        positional_only=parameter.kind is parameter.POSITIONAL_ONLY,
    )


def _source(hint: Any, *, state_type: object) -> Source | None:
    hint = _bare(hint)
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or hint
    if hint is Request:
        return "request"
    if hint is Response:
        return "response"
    inner = [item for item in get_args(hint) if item is not type(None)] if _is_union(hint) else [hint]
    kind = _bare(inner[0]) if len(inner) == 1 else None
    if not isinstance(kind, type):
        return None
    if kind is Trace and not _is_union(hint):
        return "trace"
    if issubclass(kind, TaskData):
        return "data"
    if issubclass(kind, Runtime):
        return "runtime"
    if state_type is not None and kind is state_type:
        return "state"
    return None


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _takes_none(hint: Any) -> bool:
    hint = _bare(hint)
    return _is_union(hint) and type(None) in get_args(hint)


def _complaint(name: str, hint: Any, *, example: str) -> str:
    if hint is _ABSENT:
        return f"has no annotation for {name!r}; annotate it, for example {name}: {example}"
    if isinstance(hint, _Unresolved):
        return (
            f"annotates {name!r} as {hint.text!r}, which cannot be resolved; "
            f"import it at run time, not only for type checkers"
        )
    return (
        f"annotates {name!r} as {getattr(hint, '__name__', hint)}; it can be given Request or Response, Trace, "
        f"the TaskData, the Runtime, or the rollout's state"
    )
