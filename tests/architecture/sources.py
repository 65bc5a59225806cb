"""Reading the repository's own source: its modules, what they import and what they export."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]

# Folder on the import path → the package that lies in it.
PACKAGES = {
    "app": "rollbook",
    "client": "rollbook_client",
    "projections": "rollbook_projections",
    "migrations": "rollbook_migrations",
}


class Module(msgspec.Struct, frozen=True):
    """One module of the distribution, by the name it is imported under."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))


class Import(msgspec.Struct, frozen=True):
    """One import statement's target: the module where that is known, else what `from` names."""

    target: str
    line: int


@functools.cache
def modules() -> dict[str, Module]:
    """Every module that ships, by name."""
    found: dict[str, Module] = {}
    for folder, package in PACKAGES.items():
        base = ROOT / folder
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
    return found


@functools.cache
def imports(module: Module, /) -> tuple[Import, ...]:
    """Everything the module imports, wherever the statement stands: inside functions and for type checkers too."""
    return tuple(_imports_in(module.tree(), module=module, known=frozenset(modules())))


def imports_of_source(source: str, *, module: Module, known: frozenset[str]) -> list[Import]:
    """The same for a text, with the names of the modules that are there given."""
    return list(_imports_in(ast.parse(source), module=module, known=known))


def _imports_in(tree: ast.Module, *, module: Module, known: frozenset[str]) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module=module)
            for alias in node.names:
                # `from package import module` reaches the module; `from module import name` the module it names.
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in known else base, node.lineno)


def _absolute(node: ast.ImportFrom, *, module: Module) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    base = package[: len(package) - (node.level - 1)]
    return ".".join([*base, *(node.module.split(".") if node.module else [])])


def is_first_party(target: str) -> bool:
    return target.partition(".")[0] in PACKAGES.values()


def is_within(name: str, prefix: str) -> bool:
    """Whether a module is `prefix` or lies below it."""
    return name == prefix or name.startswith(prefix + ".")


_TEXT_FOLDERS = (*PACKAGES, ".ci", "benchmarks", "deploy", "docs", "examples", "requirements", "scripts", "tests")
_GENERATED = re.compile(r"(^|/)(__pycache__|\.hypothesis|\.rollbook)(/|$)")


def text_files() -> Iterator[Path]:
    """Every file of the repository that somebody may read: code, documents, scripts, locks, settings."""
    roots = [path for path in ROOT.iterdir() if path.is_file()]
    nested = (path for folder in _TEXT_FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    for path in sorted([*roots, *nested]):
        # A work tree's .git may be a file, and it names a path of this machine.
        if path.name != ".git" and not _GENERATED.search(path.relative_to(ROOT).as_posix()) and _is_text(path):
            yield path


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)
