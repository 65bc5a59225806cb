"""Every module keeps one subject: of a size to read in one sitting, with a docstring that says what belongs in it."""

import ast
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules

LINES_MAX = 600
TIERS = frozenset({"unit", "contract", "processes", "chaos", "reference", "architecture"})

_CODE_FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks", "scripts")


def _python_files() -> list[str]:
    """Paths from the root, of shipped code and of everything beside it."""
    found = (path for folder in _CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize("path", _python_files())
def test_file_is_at_most_600_lines(path: str) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX, f"{path} has {lines} lines: split it by subject, best near 400"


@pytest.mark.parametrize("path", _python_files())
def test_file_says_what_belongs_in_it(path: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    if source.strip():
        assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring: say in a line or two what belongs in it"


def test_every_shipped_package_is_marked_as_typed() -> None:
    missing = [
        f"{folder}/{package}"
        for folder, package in PACKAGES.items()
        if not (ROOT / folder / package / "py.typed").is_file()
    ]
    assert not missing


def test_every_shipped_folder_with_code_is_a_package() -> None:
    # A folder without __init__.py imports all the same, as a namespace, but type checkers and users' tools miss it.
    folders = {module.path.parent for module in modules().values()}
    # Alembic loads migration scripts by path.
    bare = sorted(
        str(folder) for folder in folders if folder.name != "versions" and not (folder / "__init__.py").is_file()
    )
    assert not bare, f"folders without __init__.py: {bare}"


def test_every_test_file_lies_in_a_tier() -> None:
    tests = ROOT / "tests"
    stray = [path.as_posix() for path in _test_files(tests) if path.parts[0] not in TIERS]
    assert not stray, f"test files outside the tiers {sorted(TIERS)}: {stray}"


def _test_files(tests: Path) -> list[Path]:
    return [path.relative_to(tests) for path in sorted(tests.rglob("test_*.py"))]
