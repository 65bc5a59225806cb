"""What a package exports is written down once, in `__all__`, and is there."""

import ast
import importlib
from collections.abc import Iterator

import pytest

from tests.architecture.sources import Module, is_first_party, modules

# Alembic runs env.py itself, with a context that exists only then, and finds its scripts by path.
_EXPORTING = {name: module for name, module in modules().items() if not name.startswith("rollbook_migrations.")}

_PUBLIC = ("rollbook", "rollbook_client", "rollbook_projections")


def _declared(module: Module) -> list[str] | None:
    """`__all__` as the source writes it; None where there is none."""
    for node in module.tree().body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            module_names = importlib.import_module(module.name).__all__
            return list(module_names)
    return None


def _public_names(body: list[ast.stmt]) -> Iterator[str]:
    """Public names that a package's `__init__` defines or takes from our own modules, for type checkers too."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.level or is_first_party(node.module or "")):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.If):
            yield from _public_names([*node.body, *node.orelse])


@pytest.mark.parametrize("name", _EXPORTING)
def test_every_exported_name_can_be_imported(name: str) -> None:
    exported = _declared(_EXPORTING[name]) or []
    module = importlib.import_module(name)
    missing = [item for item in exported if not hasattr(module, item)]
    assert not missing, f"{name}.__all__ lists names that are not there: {missing}"
    assert len(exported) == len(set(exported)), f"{name}.__all__ lists a name twice"


@pytest.mark.parametrize("name", [name for name, module in _EXPORTING.items() if module.is_package])
def test_package_exports_exactly_its_public_names(name: str) -> None:
    module = _EXPORTING[name]
    public = {item for item in _public_names(module.tree().body) if not item.startswith("_")}
    exported = {item for item in _declared(module) or [] if not item.startswith("_")}
    assert public == exported, f"{name}: write a name into __all__, or give it an underscore"


@pytest.mark.parametrize("name", [name for name in modules() if name in _PUBLIC])
def test_public_package_has_an_export_list(name: str) -> None:
    assert _declared(modules()[name]), f"{name}/__init__.py lists nothing in __all__"
