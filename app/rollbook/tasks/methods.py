"""Methods as their authors wrote them: where they stand, whether they are async, and what a task's own must take.

A class is looked through when it is loaded. What would fail obscurely while a rollout runs, or silently do nothing, is
refused there and then, with the line and with what to write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rollbook.tasks.arguments import Source, asked_for

__all__ = ["check_method", "check_plain", "function_of", "is_async", "line_of", "place_of"]

_SAID: dict[Source, str] = {"data": "data: {data}", "runtime": "runtime: Runtime", "trace": "trace: Trace"}


def function_of(method: Any) -> Any:
    """The function that a method was made of, below class methods and decorators that keep it."""
    return inspect.unwrap(getattr(method, "__func__", method))


def is_async(method: Any) -> bool:
    """Whether its author wrote ``async def``, or marked it as such."""
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(function_of(method))


def place_of(method: Any) -> str:
    """`` (sums.py, line 12)``: where its author wrote it, for the end of a message. The lines of ours help nobody."""
    code = getattr(function_of(method), "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def line_of(error: BaseException, method: Any) -> str:
    """The same for the line of an author's code that raised: the innermost in the file that the method is in."""
    code = getattr(function_of(method), "__code__", None)
    if code is None:
        return ""
    line, step = code.co_firstlineno, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == code.co_filename:
            line = step.tb_lineno
        step = step.tb_next
    return f" ({code.co_filename}, line {line})"


def check_method(cls: type, name: str, *, takes: Sequence[Source], data: type) -> None:
    """Raise ``TypeError`` unless the method `name` is async and can be called with these, by position."""
    method = inspect.getattr_static(cls, name)
    who = f"{cls.__name__}.{name}"
    said = ", ".join(["self", *(_SAID[source].format(data=data.__name__) for source in takes)])
    right = f"write `async def {name}({said}) -> None`"
    function = getattr(method, "__func__", method)
    if not inspect.isroutine(function):
        raise TypeError(f"{who} is {type(method).__name__}, which is no method; {right}")
    if not is_async(method):
        raise TypeError(
            f"{who} is not async, so nothing that it asks of the runtime would be done; {right}, and await what the "
            f"runtime does{place_of(method)}"
        )
    if why := _why_uncallable(function, takes, bound=not isinstance(method, staticmethod), who=who):
        raise TypeError(f"{who} {why}; {right}{place_of(method)}")


def check_plain(cls: type, name: str, what: str) -> None:
    """Raise ``TypeError`` where the method `name`, which is called and not awaited, is async; `what` says how to."""
    method = inspect.getattr_static(cls, name)
    if is_async(method) or inspect.isasyncgenfunction(function_of(method)):
        raise TypeError(f"{cls.__name__}.{name} is async and would not be waited for; {what}{place_of(method)}")


def _why_uncallable(function: Callable[..., Any], takes: Sequence[Source], *, bound: bool, who: str) -> str | None:
    asked = asked_for(function, who=who)[1 if bound else 0 :]
    order = ", ".join(takes[:-1]) + f" and {takes[-1]}"
    called = f"is called with {order}, in this order"
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter, _ in asked):
        return None
    by_position = [
        (one, source) for one, source in asked if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    needed = [one.name for one, _ in asked if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if len(by_position) < len(takes) or set(needed) - {one.name for one, _ in by_position[: len(takes)]}:
        return f"takes {', '.join(needed) or 'nothing'}, and {called}"
    for source, (parameter, asks) in zip(takes, by_position, strict=False):
        if asks is not None and asks != source:
            return f"has {parameter.name} where it gets the {source}: it {called}"
    return None
