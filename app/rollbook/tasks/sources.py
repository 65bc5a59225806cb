"""What is told of a class by its source alone: mistakes that leave no trace in the class that Python makes of it.

A second method of one name replaces the first, and a call without ``await`` does nothing. Where there is no source, as
at a prompt, nothing is said.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
from collections.abc import Iterator

from rollbook.tasks.methods import function_of
from rollbook.tasks.runtimes.base import Runtime

__all__ = ["check_source"]

_HOOKS = frozenset({"reward", "metric", "stop", "intercept", "tool"})
_ASYNC = frozenset(name for name, value in vars(Runtime).items() if inspect.iscoroutinefunction(value))
_RUNTIME = re.compile(r"Runtime\b")

type _Method = ast.FunctionDef | ast.AsyncFunctionDef


def check_source(cls: type) -> None:
    """Raise ``TypeError`` where a hook or tool of the class is lost under a second method of its name, or where what
    a method asks of its runtime is not awaited.

    Only a call that stands for itself is seen: what is made of a result fails by itself where there is none.
    """
    found = _definition(cls)
    if found is None:
        return
    file, definition = found
    methods = [item for item in definition.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
    first: dict[str, _Method] = {}
    for method in methods:
        before = first.setdefault(method.name, method)
        if before is not method and (kinds := _hooks_of(before)):
            raise TypeError(
                f"{cls.__name__}.{method.name} is there twice: the @{kinds[0]} of line {before.lineno} is lost under "
                f"the one of line {method.lineno}; give one of them another name ({file}, line {method.lineno})"
            )
        how = "" if isinstance(method, ast.AsyncFunctionDef) else f" in an `async def {method.name}`"
        for call, called in _unawaited(method):
            raise TypeError(
                f"{cls.__name__}.{method.name} calls {called} and does not wait for it, so nothing is done; "
                f"write `await {called}(…)`{how} ({file}, line {call.lineno})"
            )


def _definition(cls: type) -> tuple[str, ast.ClassDef] | None:
    """The file and the statement of a class, found by the place of one of its methods."""
    for method in vars(cls).values():
        function = function_of(method)
        code = getattr(function, "__code__", None)
        if code is not None and getattr(function, "__qualname__", "") == f"{cls.__qualname__}.{function.__name__}":
            linecache.checkcache(code.co_filename)
            tree = _parsed("".join(linecache.getlines(code.co_filename)))
            around = [item for item in _classes(tree, cls.__name__) if _holds(item, code.co_firstlineno)]
            return (code.co_filename, around[-1]) if around else None
    return None


@functools.lru_cache(maxsize=4)  # the classes of a module come one after the other
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # a file that was changed meanwhile, or no Python
        return None


def _classes(tree: ast.Module | None, name: str) -> Iterator[ast.ClassDef]:
    if tree is not None:
        yield from (item for item in ast.walk(tree) if isinstance(item, ast.ClassDef) and item.name == name)


def _holds(item: ast.ClassDef, line: int) -> bool:
    return item.lineno <= line <= (item.end_lineno or item.lineno)


def _hooks_of(method: _Method) -> list[str]:
    names = []
    for decorator in method.decorator_list:
        made_by = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = made_by.attr if isinstance(made_by, ast.Attribute) else getattr(made_by, "id", "")
        names += [name] if name in _HOOKS else []
    return names


def _unawaited(method: _Method) -> Iterator[tuple[ast.Call, str]]:
    """Calls of the runtime's async methods that stand for themselves, each with what it calls."""
    arguments = method.args
    runtimes = {
        item.arg
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if (item.arg == "runtime" if item.annotation is None else _RUNTIME.search(ast.unparse(item.annotation)))
    }
    for item in ast.walk(method):
        call = item.value if isinstance(item, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        of = call.func.value
        if isinstance(of, ast.Name) and of.id in runtimes and call.func.attr in _ASYNC:
            yield call, f"{of.id}.{call.func.attr}"
