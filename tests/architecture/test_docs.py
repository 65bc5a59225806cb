"""The documents name only what is there: files, commands, options, events and their fields, states, routes, views."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from rollbook.cli.app import app
from rollbook.ledger import codec
from rollbook.ledger.schema import upgrade
from rollbook.ledger.urls import parse_url
from rollbook.server.openapi import ROUTES
from rollbook_client.events import EVENT_TYPES, AttemptOutcome
from rollbook_client.messages import RolloutInitRequest, RolloutResultResponse, RolloutStatusResponse
from rollbook_client.statuses import CancelDisposition, RolloutErrorCategory, RolloutStatus
from rollbook_projections.views import VIEWS
from tests.architecture.sources import ROOT

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def prose(document: str) -> str:
    """A document without its blocks of code."""
    return _FENCE.sub("", text(document))


def blocks(document: str, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text(document)) if kind == language]


def sections(document: str, *, level: int) -> dict[str, str]:
    """The sections of a level by their heading, backticks taken off."""
    parts = re.split(rf"^{'#' * level} (.+)$", text(document), flags=re.MULTILINE)
    return {heading.strip("`"): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def anchor(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def commands() -> dict[str, set[str]]:
    """Every command with its options, as in ``audit verify``."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        if hasattr(command, "commands"):
            for child, inner in command.commands.items():
                yield from walk(inner, f"{name} {child}".strip())
        else:
            yield (
                name,
                {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)},
            )

    return dict(walk(typer.main.get_command(app), ""))


def used_commands() -> list[tuple[str, str]]:
    """Every `rollbook …` of the documents, whether in a block for a shell or in the prose."""
    found = []
    for document in DOCUMENTS:
        spans = re.findall(r"`(rollbook [^`]+)`", prose(document).replace("\n", " "))
        lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
        found += [(document, " ".join(line.split())) for line in (*spans, *lines) if line.startswith("rollbook ")]
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings_that_exist(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"\w+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        # Measurements are written by the machine that made them, so they may be missing in a fresh tree.
        assert file.exists() or file.name == "benchmarks.md", f"{document} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {anchor(one) for one in headings}, f"{document} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_backticks_exist(document: str) -> None:
    for path in re.findall(
        r"`((?:app|client|projections|migrations|tests|examples|docs|scripts)/[\w./]*)`", text(document)
    ):
        assert (ROOT / path).exists(), f"{document} names {path}"


def test_commands_and_their_options_exist() -> None:
    known = commands()
    used = used_commands()
    assert len(used) > 15
    for document, line in used:
        words = shlex.split(line)[1:]
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in known), None)
        group = any(command.startswith(f"{words[0]} ") for command in known)
        assert name or (group and len(words) == 1), f"{document}: there is no `{line}`"
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert options <= known.get(name or "", set()), f"{document}: `{line}` has unknown options"


def test_options_in_backticks_exist() -> None:
    known = {option for options in commands().values() for option in options}
    for document in DOCUMENTS:
        for line in re.findall(r"`(--[a-z-]+)[^`]*`", prose(document)):
            assert line in known, f"{document} names the option {line}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(r"(?:^|`)make ([a-z]+)", text(document), re.MULTILINE)
        assert set(named) <= targets, document


def test_catalogue_has_every_event_and_no_other() -> None:
    assert set(sections("docs/events.md", level=3)) == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_catalogue_names_every_field_and_shows_a_payload(kind: str) -> None:
    section = sections("docs/events.md", level=3)[kind]
    fields = [field.name for field in msgspec.structs.fields(EVENT_TYPES[kind])]
    described = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    assert [name for name in fields if f"`{name}`" not in described] == []
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert list(json.loads(example)) == fields
    assert isinstance(codec.decode(kind, EVENT_TYPES[kind].VERSION, example), EVENT_TYPES[kind])


def test_life_cycle_names_every_event_status_category_and_outcome() -> None:
    page = text("docs/life-cycle.md")
    outcomes = msgspec.json.schema(AttemptOutcome)["enum"]
    marked = {status.value for status in RolloutStatus} | {category.value for category in RolloutErrorCategory}
    assert [word for word in (*marked, *outcomes) if f"`{word}`" not in page] == []
    beside = {"reward_recorded", "metric_recorded"}  # they change no state
    assert [kind for kind in EVENT_TYPES if kind not in page and kind not in beside] == []


def test_protocol_lists_the_routes_that_are_served() -> None:
    listed = re.findall(r"^\| `(GET|POST) ([^`]+)` \|", text("docs/protocol.md"), re.MULTILINE)
    assert sorted(listed) == sorted((route.method.upper(), route.path) for route in ROUTES)


def test_protocol_names_every_error_status() -> None:
    listed = {int(status) for status in re.findall(r"^\| (\d{3}) \|", text("docs/protocol.md"), re.MULTILINE)}
    assert listed >= {status for route in ROUTES for status in route.errors} | {401}


def test_protocol_names_every_field_of_an_admission_and_every_disposition() -> None:
    page = text("docs/protocol.md")
    fields = [field.name for field in msgspec.structs.fields(RolloutInitRequest)]
    assert [name for name in (*fields, *CancelDisposition) if f"`{name}`" not in page] == []


def test_examples_of_answers_are_answers() -> None:
    examples = {section: re.findall(r"```json\n(.*?)```", body, re.DOTALL) for section, body in _routes().items()}
    (result,) = examples["GET /rollout/{rollout_id}/result"]
    assert msgspec.json.decode(result, type=RolloutResultResponse).status is RolloutStatus.SUCCESS
    (status,) = examples["GET /rollout/{rollout_id}/status"]
    assert list(json.loads(status)) == [field.name for field in msgspec.structs.fields(RolloutStatusResponse)]


def _routes() -> dict[str, str]:
    return sections("docs/protocol.md", level=2)


def test_views_page_has_every_view_and_no_other() -> None:
    assert list(sections("docs/views.md", level=2)) == list(VIEWS)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("views") / "ledger.sqlite3"
    upgrade(parse_url(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path)) as db:
        yield db


@pytest.mark.parametrize("view", VIEWS)
def test_view_is_documented_column_by_column_with_a_query_that_runs(view: str, ledger: sqlite3.Connection) -> None:
    section = sections("docs/views.md", level=2)[view]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert described == [column[0] for column in ledger.execute(f"SELECT * FROM {view}").description]
    (query,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    assert f"FROM {view}" in query
    (result,) = re.findall(r"```\n(.*?)```", section.partition(query)[2].removeprefix("```"), re.DOTALL)
    assert result.splitlines()[0].split() == [column[0] for column in ledger.execute(query).description]
    assert len(result.splitlines()) > 2, "the result shows no row"
