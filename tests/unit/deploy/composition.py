"""The compose file as Docker Compose reads it: YAML with anchors, then `${…}` filled in from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from tests.architecture.sources import ROOT

DEPLOY = ROOT / "deploy"
IMAGE = "rollbook"
"""What services of ours run; the image's entrypoint is the command `rollbook`."""
ENVIRONMENT = {
    "POSTGRES_PASSWORD": "database-password",
    "ROLLBOOK_SECRET_KEY": "secret-key",
    "ROLLBOOK_API_KEY": "api-key",
    "ROLLBOOK_OPERATOR_API_KEY": "operator-key",
}
"""All that somebody must set."""

_REFERENCE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<kind>[?-])(?P<text>[^}]*))?\})")


class UnsetVariable(Exception):
    """A variable without a default is not set; the message is the file's."""


def parsed(name: str) -> Any:
    """A YAML file of the folder, as it stands."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def references() -> list[tuple[str, str | None, str | None]]:
    """Every `${NAME:KIND TEXT}` of the compose file outside its comments: name, `?`, `-` or None, and the text."""
    found: list[tuple[str, str | None, str | None]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for part in value.values():
                look(part)
        elif isinstance(value, list):
            for part in value:
                look(part)
        elif isinstance(value, str):
            found.extend((m["name"], m["kind"], m["text"]) for m in _REFERENCE.finditer(value) if m["name"])

    look(parsed("compose.yaml"))
    return found


def services(environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, dict[str, Any]]:
    """The services by name.

    Raises:
        UnsetVariable: a required variable is missing or empty.
    """
    return {name: _filled(service, environment) for name, service in parsed("compose.yaml")["services"].items()}


def ours(environment: Mapping[str, str] = ENVIRONMENT) -> dict[str, dict[str, Any]]:
    """Those that run Rollbook."""
    return {name: service for name, service in services(environment).items() if service["image"] == IMAGE}


def seconds(text: str) -> int:
    """A duration of the file; it writes all in whole seconds."""
    match = re.fullmatch(r"(\d+)s", text)
    assert match is not None, text
    return int(match[1])


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(part, environment) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, environment) for part in value]
    return _interpolated(value, environment) if isinstance(value, str) else value


def _interpolated(text: str, environment: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        found = environment.get(match["name"], "")
        if found or match["kind"] is None:
            return found
        if match["kind"] == "?":
            raise UnsetVariable(f"{match['name']}: {match['text']}")
        return match["text"]

    assert "$" not in _REFERENCE.sub("", text), f"not a reference that Compose reads: {text}"
    return _REFERENCE.sub(value, text)
