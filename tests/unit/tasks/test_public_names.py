"""The names `rollbook.tasks` exports, and what using them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rollbook.tasks

SERVING = {"Rollout", "TaskBackend", "Interaction", "alternate", "interact"}
"""What brings the endpoint along, and with it the extra `server`."""
BLOCK = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"litestar", "sqlalchemy", "uvicorn", "httptools", "alembic", "cryptography", "typer"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import rollbook.tasks
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_what_task_authors_write_against_needs_nothing_beyond_the_base_install() -> None:
    names = sorted(set(rollbook.tasks.__all__) - SERVING)
    done = run_python(BLOCK + f"for name in {names!r}: getattr(rollbook.tasks, name)\n")
    assert done.returncode == 0, done.stderr


def test_missing_extra_is_an_import_error_with_the_command() -> None:
    code = f"""
for name in {sorted(SERVING)!r}:
    try:
        getattr(rollbook.tasks, name)
    except ImportError as error:
        print(name, error)
"""
    done = run_python(BLOCK + code)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line.split()[0] for line in told if 'pip install "rollbook[server]"' in line] == sorted(SERVING)


def test_import_alone_loads_no_part() -> None:
    done = run_python(
        "import sys, rollbook.tasks; print([name for name in sys.modules if name.startswith('rollbook')])"
    )
    assert done.stdout.strip() == "['rollbook', 'rollbook.tasks']", done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rollbook.tasks.nonsense  # noqa: B018


def test_names_are_listed() -> None:
    assert set(rollbook.tasks.__all__) <= set(dir(rollbook.tasks))
