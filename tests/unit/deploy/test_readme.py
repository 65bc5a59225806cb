"""The page beside the compose file names what is there: variables, services, commands, files."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from rollbook.cli.app import app
from tests.unit.deploy.composition import DEPLOY, ENVIRONMENT, references, services

PAGE = (DEPLOY / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICE_COMMANDS = {"exec", "logs", "ps", "run", "stop", "up"}


def shell_lines() -> list[str]:
    return [line for kind, body in FENCE.findall(PAGE) if kind == "sh" for line in body.splitlines()]


def table_variables() -> set[str]:
    rows = re.findall(r"^\| (`[A-Z_]{4,}`[^|]*) \|", PAGE, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_table_has_every_variable_of_the_compose_file_and_no_other() -> None:
    assert table_variables() == {name for name, _, _ in references()}


def test_defaults_are_told_as_they_are() -> None:
    for name, _, default in references():
        if name not in ENVIRONMENT and name not in {"WORKFLOW", "WORKFLOW_DIR"}:
            assert re.search(rf"^\| `{name}` \|.*(?<!\w){default}(?!\w).* unless set \|$", PAGE, re.MULTILINE), name


def test_every_required_variable_is_written_into_the_file_of_the_first_steps() -> None:
    written = re.findall(r'^  echo "(\w+)=', "\n".join(shell_lines()), re.MULTILINE)
    assert sorted(written) == sorted(ENVIRONMENT)


def test_commands_of_rollbook_are_its_own() -> None:
    found = [
        re.search(r"(?:run --rm upgrade|exec \w+ rollbook|run --rm rollbook) ([a-z][\w -]*)", line)
        for line in shell_lines()
    ]
    commands = [shlex.split(match[1]) for match in found if match is not None]
    assert len(commands) >= 4
    for words in commands:
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


def test_services_that_commands_name_exist() -> None:
    known = set(services())
    for line in shell_lines():
        words = (line.partition("$(")[2].partition(")")[0] or line).split()
        if words[:2] != ["docker", "compose"] or words[2] not in SERVICE_COMMANDS:
            continue
        scaled = {words[at + 1].partition("=")[0] for at, word in enumerate(words) if word == "--scale"}
        named = {word for word in words[3:] if word in known}
        assert scaled <= known, line
        assert named or scaled or words[2] == "ps", line


def test_listed_files_exist() -> None:
    for name in re.findall(r"^\| `([\w.]+[a-z])` \|", PAGE, re.MULTILINE):
        if not name.isupper():
            assert (DEPLOY / name).is_file(), name
