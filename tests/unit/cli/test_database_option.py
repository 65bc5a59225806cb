"""`--database-url` of every command: it comes from the environment too, and its password is shown nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from rollbook.cli.app import app, run
from rollbook.settings import DATABASE_VARIABLE

PASSWORD = "sesame"


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, groups left out."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, *names, name)
    else:
        yield names, command


WITH_THE_OPTION = {
    " ".join(names): option
    for names, command in commands(typer.main.get_command(app))
    for option in command.params
    if "--database-url" in option.opts
}
WITHOUT = {"demo", "secret-key"}
"""They touch no ledger of the operator's."""


def test_every_command_on_a_ledger_has_the_option() -> None:
    everything = {" ".join(names) for names, _ in commands(typer.main.get_command(app))}
    assert everything - set(WITH_THE_OPTION) == WITHOUT


@pytest.mark.parametrize("command", WITH_THE_OPTION)
def test_option_comes_from_the_environment(command: str) -> None:
    assert WITH_THE_OPTION[command].envvar == DATABASE_VARIABLE == "ROLLBOOK_DATABASE_URL"


@pytest.mark.parametrize("command", WITH_THE_OPTION)
def test_help_names_the_variable_and_not_its_value(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"postgresql://rollbook:{PASSWORD}@db/rollbook")
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert f"env var: {DATABASE_VARIABLE}" in " ".join(shown.out.split())
    assert PASSWORD not in shown.out + shown.err


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://rollbook:{PASSWORD}@db/rollbook",
        f"postgresql+other://rollbook:{PASSWORD}@db/",
        f"sqlite://rollbook:{PASSWORD}@db/",
        f"postgresql://u:se/{PASSWORD}@h/db",
        f"u:{PASSWORD}@h",
    ],
)
@pytest.mark.parametrize("command", [("db", "check"), ("rollouts",), ("serve", "--no-scheduler", "--queue", "q")])
def test_complaint_about_a_database_shows_no_password(
    command: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    assert run(command) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("rollbook: ")
    assert PASSWORD not in shown.out + shown.err


def test_complaint_about_an_option_shows_no_database(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"postgresql://rollbook:{PASSWORD}@db/rollbook")
    assert run(["rollouts", "--limit", "none"]) == 2
    assert PASSWORD not in capsys.readouterr().err
