"""How the conformance script compares answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "conformance.py"


@pytest.fixture(scope="module")
def conformance() -> Any:
    spec = importlib.util.spec_from_file_location("conformance_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expected", "observed", "lines"),
    [
        ({"a": [1, 2.0]}, {"a": [1.0, 2]}, []),
        ({"a": 1}, {"a": True}, ["a: expected 1, found true"]),
        ({"a": None}, {}, ["a: expected null, found nothing"]),
        ({}, {"b": "x"}, ['b: expected nothing, found "x"']),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]: expected 2, found 3"]),
        ([1, 2], [1], [": expected [1, 2], found [1]"]),
        ("text", ["text"], [': expected "text", found ["text"]']),
    ],
)
def test_differences_are_named_by_their_place(conformance: Any, expected: Any, observed: Any, lines: list[str]) -> None:
    assert list(conformance.differences(expected, observed)) == lines


def test_missing_shared_folder_is_one_line_that_says_what_to_set(
    conformance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLBOOK_SHARED", str(tmp_path))
    assert conformance.main(["serve"]) == 2
    error = capsys.readouterr().err
    assert "ROLLBOOK_SHARED" in error
    assert error.count("\n") == 1
