"""The decorators that make methods of a task into hooks, and what a class's hooks are.

A class is looked through when it is loaded: a hook of a shape that could not be called is refused there and then.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, overload

from msgspec import Struct

from rollbook.sdk.values import shown
from rollbook.tasks.arguments import Parameter, parameters_of
from rollbook.tasks.methods import is_async, place_of

__all__ = ["Hook", "HookSet", "Hooked", "Kind", "intercept", "metric", "reward", "stop"]

type Kind = Literal["reward", "metric", "stop", "intercept"]
type Boundary = Literal["request", "response", "trace"]

MARKS = "__rollbook_hooks__"
"""The attribute of a function that says which hooks it is."""
_FOR_SCORES = "Runtime, Trace or the TaskData"
_FOR_BOUNDARIES = "Request, Response or Trace"
_INSIDE = ("fget", "func", "__func__")
"""Where properties, cached properties, partial and class methods have the function that they were made of."""


class _Mark(Struct, frozen=True):
    kind: Kind
    weight: Any
    priority: Any


@overload
def reward[F: Callable[..., Any]](method: F, /) -> F: ...
@overload
def reward[F: Callable[..., Any]](*, weight: float = 1.0, priority: int = 0) -> Callable[[F], F]: ...
def reward(method: Any = None, /, *, weight: float = 1.0, priority: int = 0) -> Any:
    """Make a method a reward of its task, under the method's name; it counts `weight` times in the trace's reward.

    It returns a number, a mapping of names to numbers (which then stand in place of its own name), or None where
    there is nothing to say.
    """
    return _decorate(method, _Mark("reward", weight, priority))


@overload
def metric[F: Callable[..., Any]](method: F, /) -> F: ...
@overload
def metric[F: Callable[..., Any]](*, priority: int = 0) -> Callable[[F], F]: ...
def metric(method: Any = None, /, *, priority: int = 0) -> Any:
    """Make a method a metric, under the method's name: a measurement that counts for nothing. Returns as a reward."""
    return _decorate(method, _Mark("metric", 0.0, priority))


@overload
def stop[F: Callable[..., Any]](method: F, /) -> F: ...
@overload
def stop[F: Callable[..., Any]](*, priority: int = 0) -> Callable[[F], F]: ...
def stop(method: Any = None, /, *, priority: int = 0) -> Any:
    """Make a method a stop: it says with True or False whether the rollout takes no further turn.

    The annotated type of its parameter says when it is asked: Request, Response, or Trace (before each turn).
    """
    return _decorate(method, _Mark("stop", 0.0, priority))


@overload
def intercept[F: Callable[..., Any]](method: F, /) -> F: ...
@overload
def intercept[F: Callable[..., Any]](*, priority: int = 0) -> Callable[[F], F]: ...
def intercept(method: Any = None, /, *, priority: int = 0) -> Any:
    """Make a method an interceptor: it is given a copy of a Request or Response, which it returns or just changes.

    Of a request it may rewrite the new user and tool messages, of a response the assistant's text.
    """
    return _decorate(method, _Mark("intercept", 0.0, priority))


def _decorate(method: Any, mark: _Mark) -> Any:
    def decorate(target: Any) -> Any:
        if not callable(target) and not isinstance(target, (staticmethod, classmethod)):
            raise TypeError(f"@{mark.kind} stands on a method; its settings are named, as in @{mark.kind}(priority=1)")
        setattr(target, MARKS, (*getattr(target, MARKS, ()), mark))
        return target

    return decorate if method is None else decorate(method)


class Hook(Struct, frozen=True):
    """One hook of a class. `boundary` is what a stop or an interceptor is routed by, None for scores."""

    kind: Kind
    name: str
    owner: str
    """The name of the class that was looked through."""
    parameters: tuple[Parameter, ...]
    weight: float = 0.0
    priority: int = 0
    boundary: Boundary | None = None

    @property
    def who(self) -> str:
        """For messages: ``@stop Sums.too_long``."""
        return f"@{self.kind} {self.owner}.{self.name}"


class HookSet(Struct, frozen=True):
    """The hooks of a class, inherited ones too; each group in the order in which it runs."""

    request_interceptors: tuple[Hook, ...] = ()
    response_interceptors: tuple[Hook, ...] = ()
    request_stops: tuple[Hook, ...] = ()
    response_stops: tuple[Hook, ...] = ()
    trace_stops: tuple[Hook, ...] = ()
    metrics: tuple[Hook, ...] = ()
    rewards: tuple[Hook, ...] = ()

    @property
    def rewrites_responses(self) -> bool:
        """Whether a hook may change or refuse an answer, so that none of it may go on before it is there as a whole."""
        return bool(self.response_interceptors or self.response_stops)


class Hooked:
    """Base of classes with hooks: tasks and harnesses.

    An override replaces the hook it overrides, and without a decorator of its own it is none. Hooks run in the order
    of their priorities, the highest first, then of their names. Raises ``TypeError`` naming the hook when a class
    with one of a wrong shape is loaded.
    """

    hooks: ClassVar[HookSet] = HookSet()
    hook_kinds: ClassVar[frozenset[Kind]] = frozenset({"reward", "metric", "stop", "intercept"})
    """What subclasses may have."""
    state_type: ClassVar[Callable[[], Any]] = SimpleNamespace
    """The class of the rollout's own object; a parameter annotated with it is given that object."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.hooks = _collected(cls)


def _collected(cls: type[Hooked]) -> HookSet:
    found = sorted(_found(cls), key=lambda hook: (-hook.priority, hook.name))

    def group(kind: Kind, boundary: Boundary | None = None) -> tuple[Hook, ...]:
        return tuple(hook for hook in found if hook.kind == kind and hook.boundary == boundary)

    return HookSet(
        request_interceptors=group("intercept", "request"),
        response_interceptors=group("intercept", "response"),
        request_stops=group("stop", "request"),
        response_stops=group("stop", "response"),
        trace_stops=group("stop", "trace"),
        metrics=group("metric"),
        rewards=group("reward"),
    )


def _found(cls: type[Hooked]) -> Iterator[Hook]:
    marked = {name for base in cls.__mro__ for name, value in vars(base).items() if _marks_in(value)}
    for name in sorted(marked):
        method = inspect.getattr_static(cls, name)
        if hidden := () if getattr(method, MARKS, ()) else _marks_in(method):
            raise TypeError(
                f"@{hidden[0].kind} {cls.__name__}.{name} is a {type(method).__name__}, which is no method; "
                f"write `def {name}(self, …)` with @{hidden[0].kind} above it"
            )
        if marks := getattr(method, MARKS, ()):
            try:
                yield _hook(cls, name, method=method, marks=marks)
            except TypeError as error:
                raise TypeError(f"{error}{place_of(method)}") from None


def _marks_in(value: Any) -> tuple[_Mark, ...]:
    """The marks of an attribute, or of the function that a property or a partial method has made its own."""
    for found in (value, *(getattr(value, name, None) for name in _INSIDE)):
        if marks := getattr(found, MARKS, ()):
            return marks  # type: ignore[no-any-return]
    return ()


def _hook(cls: type[Hooked], name: str, *, method: Any, marks: tuple[_Mark, ...]) -> Hook:
    place = f"{cls.__name__}.{name}"
    if len(marks) > 1:
        kinds = " and ".join(f"@{mark.kind}" for mark in reversed(marks))
        raise TypeError(f"{place} is {kinds}; a method is one hook, so write two methods")
    [mark] = marks
    who = f"@{mark.kind} {place}"
    if mark.kind not in cls.hook_kinds:
        allowed = ", ".join(f"@{kind}" for kind in sorted(cls.hook_kinds))
        raise TypeError(f"{who} has no place in this class, which may have {allowed}; put it into the task")
    if not inspect.isfunction(method) or inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise TypeError(f"{who} is no method that returns something; write `def {name}(self, …)` or `async def`")
    if not isinstance(mark.priority, int) or isinstance(mark.priority, bool):
        raise TypeError(f"{who} has the priority {shown(mark.priority)}; give it a whole number")
    if not isinstance(mark.weight, (int, float)) or isinstance(mark.weight, bool) or not math.isfinite(mark.weight):
        raise TypeError(f"{who} has the weight {shown(mark.weight)}; give it a finite number")
    scores = mark.kind in ("reward", "metric")
    parameters = parameters_of(
        method, who=who, state_type=cls.state_type, example=_FOR_SCORES if scores else _FOR_BOUNDARIES
    )
    if not is_async(method) and any(parameter.source == "runtime" for parameter in parameters):
        raise TypeError(
            f"{who} takes the Runtime and is not async, so nothing that it asks of it would be done; "
            f"write `async def {name}(self, …)`, and await what the runtime does"
        )
    return Hook(
        kind=mark.kind,
        name=name,
        owner=cls.__name__,
        parameters=parameters,
        weight=float(mark.weight),
        priority=mark.priority,
        boundary=_boundary(mark.kind, parameters, who=who),
    )


def _boundary(kind: Kind, parameters: tuple[Parameter, ...], *, who: str) -> Boundary | None:
    """What the annotations route a hook to; a Trace beside a Request or a Response is not its boundary."""
    sides = [item.source for item in parameters if item.source in ("request", "response")]
    traces = [item for item in parameters if item.source == "trace" and item.typed]
    if kind in ("reward", "metric"):
        if sides:
            raise TypeError(f"{who} asks for a {sides[0].title()}; scores are made of the whole: write `trace: Trace`")
        return None
    if len(sides) > 1 or len(traces) > 1:
        twice = " and ".join(source.title() for source in sides) if len(sides) > 1 else "Trace twice"
        raise TypeError(f"{who} asks for {twice}; keep one, and write a second method for the other")
    if sides:
        return "request" if sides[0] == "request" else "response"
    if kind == "stop" and traces:
        return "trace"
    if kind == "stop":
        raise TypeError(
            f"{who} has no parameter that says when it is asked; "
            f"annotate one: `request: Request`, `response: Response` or `trace: Trace`"
        )
    what = "asks for a Trace alone" if traces else "has no parameter that says what it rewrites"
    raise TypeError(f"{who} {what}; annotate one: `request: Request` or `response: Response`")
