"""The key that requests must bear comes from an environment variable, and stays in no environment."""

from __future__ import annotations

import os

import pytest
import typer

from rollbook.cli import options

NAME = "DEPLOYMENT_KEY"


def test_key_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a key")
    assert options.api_key(NAME) == "a key"
    assert NAME not in os.environ


@pytest.mark.parametrize("value", [None, " "])
def test_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv(NAME, value)
    with pytest.raises(typer.BadParameter, match=NAME):
        options.api_key(NAME)


def test_no_variable_means_no_key() -> None:
    assert options.api_key(None) is None
