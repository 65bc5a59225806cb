"""The keys that requests must bear come from environment variables, and stay in no environment."""

from __future__ import annotations

import os

import pytest
import typer

from rollbook.cli import options

NAME = "DEPLOYMENT_KEY"
OPERATORS = "OPERATORS_KEY"


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


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_addresses_that_others_reach_are_told_apart(host: str, alone: bool) -> None:
    assert options.is_loopback(host) == alone


def test_no_variable_means_no_key() -> None:
    assert options.api_key(None) is None


def test_operators_key_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a key")
    monkeypatch.setenv(OPERATORS, "another")
    assert options.api_keys(NAME, OPERATORS) == ("a key", "another")
    assert not {NAME, OPERATORS} & set(os.environ)


def test_either_key_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPERATORS, "a key")
    assert options.api_keys(None, OPERATORS) == (None, "a key")
    assert options.api_keys(None, None) == (None, None)


def test_complaint_names_the_operators_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a key")
    with pytest.raises(typer.BadParameter, match=f"{OPERATORS} is not set") as refused:
        options.api_keys(NAME, OPERATORS)
    assert refused.value.param_hint == "--operator-api-key-env"


def test_one_key_for_trainers_and_operators_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "open sesame")
    monkeypatch.setenv(OPERATORS, "open sesame")
    with pytest.raises(typer.BadParameter, match=f"{OPERATORS} holds the same key as {NAME}") as refused:
        options.api_keys(NAME, OPERATORS)
    assert "sesame" not in str(refused.value)


def test_one_variable_for_both_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a key")
    with pytest.raises(typer.BadParameter, match="name another variable"):
        options.api_keys(NAME, NAME)
