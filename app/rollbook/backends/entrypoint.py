"""From an entrypoint, as the command line takes it, to a backend: finding the user's code and loading it.

An entrypoint is the path of a ``.py`` file with one concrete workflow and at most one grader, or ``module:name`` or
``path/to/file.py:name`` for a backend or a function without arguments that makes one.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from rollbook.backends.base import ExecutionBackend
from rollbook.backends.errors import EntrypointError, MachineError
from rollbook.backends.local import LocalBackend
from rollbook.backends.recording import reach_loopback_directly
from rollbook.backends.references import has_no, import_file, put_on_path
from rollbook.sdk.config import AgentWorkflowConfig, GraderConfig
from rollbook.sdk.grader import Grader
from rollbook.sdk.workflow import AgentWorkflow

_OURS = Path(__file__).parents[1]


class _Spec(msgspec.Struct, frozen=True):
    text: str
    file: Path | None
    module: str
    name: str | None


def entrypoint_name(spec: str) -> str:
    """The name of an entrypoint, which is its default queue: the file's stem, ``stem:name`` or ``module:name``.

    Raises `EntrypointError` for a text that is no entrypoint; the code is neither looked for nor loaded.
    """
    parsed = _parse(spec)
    return parsed.module if parsed.name is None else f"{parsed.module}:{parsed.name}"


def load_entrypoint(
    spec: str, *, max_concurrent: int | None = None, record_model_calls: bool | None = None
) -> ExecutionBackend:
    """Import the user's code and make its backend; `max_concurrent` replaces a `LocalBackend`'s own limit.

    `record_model_calls` True has a `LocalBackend` record its model calls unless its author decided, False keeps it
    from it; None leaves it as it is.

    The file's folder, or for a module the current folder, goes to the front of ``sys.path``, so the code can import
    what lies beside it. In a file with classes, its one `AgentWorkflowConfig` and its one `GraderConfig` are used.
    Raises `EntrypointError` whatever goes wrong, with the cause chained.
    """
    parsed = _parse(spec)
    if record_model_calls:
        reach_loopback_directly()
    module = _import(parsed)
    backend = _discover(parsed, module) if parsed.name is None else _named(parsed, module)
    if max_concurrent is not None:
        if not isinstance(backend, LocalBackend):
            raise EntrypointError(
                f"{spec}: its {type(backend).__name__} sets its own concurrency; "
                f"leave out the limit, or change it in the backend",
                spec=spec,
            )
        try:
            backend.max_concurrent = max_concurrent
        except ValueError as error:
            raise EntrypointError(f"{spec}: {error}", spec=spec) from error
    if isinstance(backend, LocalBackend) and (record_model_calls is False or backend.record_model_calls is None):
        backend.record_model_calls = record_model_calls
    return backend


def check_entrypoint(spec: str, backend: ExecutionBackend) -> None:
    """Find out whether this machine has what the backend of an entrypoint needs; call it where no event loop runs.

    Raises `EntrypointError` that says what is missing, with the cause chained.
    """
    try:
        _guarded(_parse(spec), lambda: asyncio.run(backend.check()), what="checking what it needs")
    except EntrypointError as error:
        if isinstance(error.__cause__, MachineError):
            missing = " ".join(str(error.__cause__).split())
            raise EntrypointError(f"{spec}: this machine cannot run it: {missing}", spec=spec) from error.__cause__
        raise


def _parse(spec: str) -> _Spec:
    if spec.endswith(".py"):
        return _Spec(spec, Path(spec), Path(spec).stem, None)
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise EntrypointError(
            f"{spec!r} is no entrypoint; pass the path of a .py file with a workflow, or file.py:name or module:name "
            f"for a backend, or for a function that makes one",
            spec=spec,
        )
    if place.endswith(".py"):
        return _Spec(spec, Path(place), Path(place).stem, name)
    return _Spec(spec, None, place, name)


def _import(spec: _Spec) -> ModuleType:
    if spec.file is None:
        put_on_path(Path.cwd())
        return _guarded(spec, lambda: importlib.import_module(spec.module))
    file = spec.file
    if not file.is_file():
        raise EntrypointError(f"{file}: there is no such file; check the path", spec=spec.text)
    return _guarded(spec, lambda: import_file(file))


def _guarded[T](spec: _Spec, load: Callable[[], T], *, what: str = "loading it") -> T:
    """Call ``load()``; whatever user code raises, ``SystemExit`` included, becomes an `EntrypointError`."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = _where(error, what)
        raise EntrypointError(f"{spec.text}: {said}; correct it and start again", spec=spec.text) from error


def _where(error: BaseException, what: str) -> str:
    """The error in one line, with the last place in the user's code that it passed.

    That is no place of ours: what Rollbook refuses was written by whoever called it.
    """
    text = " ".join(str(error).split())
    said = f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")
    if isinstance(error, SyntaxError):
        return said  # its text names file and line
    machinery = (f"{_OURS}{os.sep}", importlib.__file__, importlib.util.__file__, "<frozen ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(machinery)]
    if not frames or f"{frames[-1].filename}, line " in text:
        return said
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})"


def _named(spec: _Spec, module: ModuleType) -> ExecutionBackend:
    name = str(spec.name)
    if not hasattr(module, name):
        raise EntrypointError(f"{spec.text}: {spec.module} {has_no(name, module, wanted=name)}", spec=spec.text)
    found = getattr(module, name)
    if callable(found) and not isinstance(found, (type, ExecutionBackend)):
        if not _takes_no_arguments(found):
            raise EntrypointError(
                f"{spec.text}: {spec.name} takes arguments; give them defaults, or wrap it in a function without any",
                spec=spec.text,
            )
        found = _guarded(spec, found)
    if isinstance(found, ExecutionBackend):
        return found
    if _is_task(found if isinstance(found, type) else type(found)):
        advice = _how_to_run(spec, found.__name__ if isinstance(found, type) else name)
    else:
        advice = (
            "make it a backend, as LocalBackend(workflow=…) for workflows and TaskBackend(task=…, harness=…, "
            "runtime=…) for tasks, or a function that returns one"
        )
    raise EntrypointError(f"{spec.text}: {spec.name} is {_described(found)}, not a backend; {advice}", spec=spec.text)


def _takes_no_arguments(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: the call itself will tell
        return True
    return True


def _described(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"


def _discover(spec: _Spec, module: ModuleType) -> ExecutionBackend:
    workflows = _classes(module, AgentWorkflow)
    graders = _classes(module, Grader)
    if len(workflows) != 1:
        raise EntrypointError(_not_one_workflow(spec, module, workflows), spec=spec.text)
    if len(graders) > 1:
        raise EntrypointError(
            f"{spec.text}: it defines several graders ({_names(graders)}); "
            f"keep one, or make the backend yourself and pass {spec.text}:NAME",
            spec=spec.text,
        )
    workflow_config = _config(spec, module, AgentWorkflowConfig, name="workflow_config")
    grader_config = _config(spec, module, GraderConfig, name="grader_config")
    return LocalBackend(
        workflow=workflows[0],
        workflow_config=workflow_config,
        grader=graders[0] if graders else None,
        grader_config=grader_config,
    )


def _classes(module: ModuleType, base: type) -> list[type[Any]]:
    """The concrete subclasses of `base` that the module itself defines."""
    found = {
        value: None
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }
    return list(found)


def _not_one_workflow(spec: _Spec, module: ModuleType, workflows: list[type[Any]]) -> str:
    if workflows:
        return (
            f"{spec.text}: it defines several workflows ({_names(workflows)}); "
            f"keep one, or make the backend yourself and pass {spec.text}:NAME"
        )
    unfinished = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, AgentWorkflow) and value.__module__ == module.__name__
    ]
    if unfinished:
        return f"{spec.text}: {_names(unfinished)} is abstract; define `async def run(self, ctx)` in it"
    if makers := _makers_of_backends(module):
        wanted = " or ".join(f"{spec.text}:{name}" for name in makers)
        return f"{spec.text}: a file alone must hold a workflow, and this one has a backend; name that too: {wanted}"
    tasks = [value for value in vars(module).values() if isinstance(value, type) and _is_task(value)]
    if own := [task for task in tasks if task.__module__ == module.__name__]:
        name = own[0].__name__
        return f"{spec.text}: it holds the task {name} and nothing that runs it; {_how_to_run(spec, name)}"
    return (
        f"{spec.text}: it defines no workflow; write a subclass of rollbook.AgentWorkflow in this file "
        f"(imported ones do not count), or make a backend in it and pass {spec.text}:NAME"
    )


def _how_to_run(spec: _Spec, task: str) -> str:
    place = spec.text if spec.name is None else spec.text.rpartition(":")[0]
    return (
        f"write a function `def backend(): return TaskBackend(task={task}, harness=…, runtime=…)` and pass "
        f"{place}:backend"
    )


def _makers_of_backends(module: ModuleType) -> list[str]:
    """Names in the module for backends, and for functions of its own that by their annotation or name make one."""
    found: list[str] = []
    for name, value in vars(module).items():
        if isinstance(value, ExecutionBackend):
            found.append(name)
        elif inspect.isfunction(value) and value.__module__ == module.__name__ and _takes_no_arguments(value):
            made = value.__annotations__.get("return")
            said = made if isinstance(made, str) else getattr(made, "__name__", "")
            if said.strip("'\"").endswith("Backend") or (name == "backend" and made is None):
                found.append(name)
    return found


def _is_task(kind: type[Any]) -> bool:
    # By name: tasks build upon backends, and their library is only there where somebody has loaded it.
    return any(base.__module__ == "rollbook.tasks.task" and base.__name__ == "Task" for base in kind.__mro__[1:])


def _config[T](spec: _Spec, module: ModuleType, kind: type[T], *, name: str) -> T | None:
    """The module's one config of this kind; among several, the one called `name`."""
    found = {id(value): value for value in vars(module).values() if isinstance(value, kind)}
    if len(found) <= 1:
        return next(iter(found.values()), None)
    chosen = getattr(module, name, None)
    if isinstance(chosen, kind):
        return chosen
    raise EntrypointError(
        f"{spec.text}: it has several {kind.__name__} objects; call the one to be used {name}", spec=spec.text
    )


def _names(classes: list[type[Any]]) -> str:
    return ", ".join(cls.__name__ for cls in classes)
