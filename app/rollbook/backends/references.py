"""Objects named by text: ``module:Name``."""

from __future__ import annotations

import importlib
from typing import Any


def resolve(reference: Any) -> Any:
    """Import what a ``"module:Name"`` string names (``Name`` may be dotted); anything but a string is returned as is.

    Raises ``ValueError`` for a string of another form and ``ImportError`` if the module or the name is not there.
    """
    if not isinstance(reference, str):
        return reference
    module_name, separator, path = reference.rpartition(":")
    if not separator or not module_name or not path:
        raise ValueError(f"{reference!r} names no object; write it as 'package.module:Name'")
    target = importlib.import_module(module_name)
    for name in path.split("."):
        try:
            target = getattr(target, name)
        except AttributeError as error:
            raise ImportError(f"{module_name} has no {path!r}; check the name after the colon") from error
    return target
