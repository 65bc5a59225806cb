"""The names `rollbook` exports, and what using them costs."""

import subprocess
import sys

import osmosis_ai.rollout as reference
import pytest

import rollbook


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


BLOCK = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import rollbook
"""


def test_every_name_of_the_reference_is_exported() -> None:
    assert set(reference.__all__) <= set(rollbook.__all__)


def test_sdk_names_need_nothing_beyond_the_base_install() -> None:
    sdk = [name for name in reference.__all__ if hasattr(rollbook, name)]
    assert len(sdk) == len(reference.__all__)
    blocked = {"litestar", "sqlalchemy", "uvicorn", "alembic", "aiosqlite", "cryptography", "typer", "pydantic"}
    done = run_python(BLOCK.format(blocked=blocked) + f"for name in {sdk!r}: getattr(rollbook, name)\n")
    assert done.returncode == 0, done.stderr


def test_missing_extra_is_an_import_error_with_the_command() -> None:
    done = run_python(
        BLOCK.format(blocked={"litestar"})
        + "try:\n    rollbook.create_rollout_server\nexcept ImportError as error:\n    print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert 'pip install "rollbook[server]"' in done.stdout
    assert "litestar" in done.stdout


def test_import_alone_loads_no_part() -> None:
    done = run_python("import sys, rollbook; print([name for name in sys.modules if name.startswith('rollbook')])")
    assert done.stdout.strip() == "['rollbook']", done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rollbook.nonsense  # noqa: B018


def test_names_are_listed() -> None:
    assert set(rollbook.__all__) <= set(dir(rollbook))
