"""The image is made of what a wheel needs, all of which reaches the builder, and runs as nobody special."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from tests.architecture.sources import ROOT
from tests.unit.deploy.composition import DEPLOY


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order: keyword and the rest, continued lines joined, comments left out."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines()]


def copied() -> set[str]:
    """What is copied from the repository."""
    sources: set[str] = set()
    for keyword, rest in instructions():
        if keyword == "COPY" and not rest.startswith("--from="):
            sources.update(rest.split()[:-1])
    return sources


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert copied() == sent
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_wheel_finds_everything_that_it_is_made_of() -> None:
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    about = project()["project"]
    needed = {*wheel["packages"], *wheel["force-include"], about["readme"], *about["license-files"], "pyproject.toml"}
    there = copied()
    assert [path for path in needed if not there & {path, path.split("/")[0]}] == []


def test_installed_extra_is_the_one_for_postgres() -> None:
    (installed,) = [re.search(r"\.\[(\w+)\]", rest) for _, rest in instructions() if ".[" in rest]
    assert installed is not None
    assert installed[1] in project()["project"]["optional-dependencies"]
    assert installed[1] == "postgres"


def test_container_is_the_command_and_not_root() -> None:
    last = dict(instructions())
    assert last["ENTRYPOINT"] == '["rollbook"]'
    assert last["USER"].isdigit()
    assert int(last["USER"]) > 0


def test_python_is_one_that_rollbook_runs_on() -> None:
    versions = {rest.split()[0] for keyword, rest in instructions() if keyword == "FROM"}
    (version,) = (re.fullmatch(r"python:(\d+)\.(\d+)-slim", text) for text in versions)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}.{version[2]}" in project()["project"]["classifiers"]
