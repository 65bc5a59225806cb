"""Objects named by text, ``module:Name`` or ``path/to/file.py:Name``, and the modules and files that hold them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def resolve(reference: Any) -> Any:
    """Import what a ``"module:Name"`` or ``"path/to/file.py:Name"`` string names (``Name`` may be dotted); anything
    but a string is returned as is.

    Raises ``ValueError`` for a string of another form and ``ImportError`` if the module, the file or the name is not
    there.
    """
    if not isinstance(reference, str):
        return reference
    place, separator, path = reference.rpartition(":")
    if not separator or not place or not path:
        raise ValueError(f"{reference!r} names no object; write it as 'package.module:Name' or 'path/to/file.py:Name'")
    target: Any = import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    for name in path.split("."):
        try:
            target = getattr(target, name)
        except AttributeError as error:
            raise ImportError(f"{place} {has_no(path, target, wanted=name)}") from error
    return target


def import_file(file: Path) -> ModuleType:
    """The module that a ``.py`` file is; its folder goes to the front of ``sys.path``, for what lies beside it.

    Under its own stem the file is the module that its neighbours get when they import it. A name that is taken, or
    the standard library's, stays with its owner. Raises ``ImportError`` where there is no such file.
    """
    if not file.is_file():
        raise ImportError(f"{file}: there is no such file; check the path")
    file = file.absolute()
    put_on_path(file.parent)
    name = file.stem
    taken = sys.modules.get(name)
    if taken is not None and getattr(taken, "__file__", None) == str(file):
        return taken
    if taken is not None or name in sys.stdlib_module_names:
        name = f"rollbook_entrypoint_{name}"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ImportError(f"{file} cannot be loaded as Python source")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # before it runs: classes with resolved type hints look their module up
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def put_on_path(folder: Path) -> None:
    """Have modules in this folder found first, unless it is looked through already."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def has_no(path: str, owner: Any, *, wanted: str) -> str:
    """What is said of a module or class that lacks the name `wanted`, asked for by `path`: names close to it."""
    close = difflib.get_close_matches(wanted, [name for name in dir(owner) if not name.startswith("__")])
    meant = f"did you mean {' or '.join(close)}?" if close else "check the name after the colon"
    return f"has no {path!r}; {meant}"
