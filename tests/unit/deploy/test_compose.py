"""The compose file asks for nothing that Rollbook does not know: commands, variables, routes, times."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from rollbook.backends.artifacts import ARTIFACTS_DIR_ENV
from rollbook.cli.app import app
from rollbook.cli.failures import DEBUG_VARIABLE
from rollbook.cli.stack import API_STOP_LIMIT_SEC, scheduler_child
from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.server.service import PROCESS_ID_VARIABLE
from rollbook.settings import DATABASE_VARIABLE, SchedulerSettings
from tests.unit.deploy.composition import DEPLOY, ENVIRONMENT, UnsetVariable, ours, references, seconds, services

READ_FROM_THE_ENVIRONMENT = {DATABASE_VARIABLE, KEY_VARIABLE, PROCESS_ID_VARIABLE, ARTIFACTS_DIR_ENV, DEBUG_VARIABLE}
KEY_OPTIONS = {"api_key_env", "operator_api_key_env"}
OURS = sorted(ours())


def arguments(command: list[str]) -> dict[str, Any]:
    """What the command line parses to; the command is not carried out.

    Raises:
        KeyError: there is no such command.
        typer.BadParameter, or another usage error: the command does not take these arguments.
    """
    found: Any = typer.main.get_command(app)
    names, rest = ["rollbook"], list(command)
    while hasattr(found, "commands"):
        names.append(rest.pop(0))
        found = found.commands[names[-1]]
    return {**found.make_context(names[-1], rest).params, "command": " ".join(names)}


def health_command(service: dict[str, Any]) -> list[str]:
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    return list(command)


@pytest.mark.parametrize("name", OURS)
def test_command_line_is_one_that_rollbook_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = ours()[name]
    monkeypatch.setenv(DATABASE_VARIABLE, service["environment"][DATABASE_VARIABLE])
    parsed = arguments(service["command"])
    assert parsed["database_url"] == "postgresql://rollbook:database-password@postgres:5432/rollbook"


@pytest.mark.parametrize("command", [["serve", "--no-such-option"], ["scheduler"], ["serve", "--port=high"]])
def test_parser_refuses_what_rollbook_does_not_accept(command: list[str]) -> None:
    usage_error = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
    with pytest.raises(usage_error):
        arguments(command)


def test_services_are_an_upgrade_apis_without_schedulers_and_schedulers() -> None:
    commands = {name: arguments(service["command"])["command"] for name, service in ours().items()}
    assert commands == {"upgrade": "rollbook db upgrade", "api": "rollbook serve", "scheduler": "rollbook scheduler"}
    assert arguments(ours()["api"]["command"])["no_scheduler"]
    assert arguments(ours()["api"]["command"])["host"] == "0.0.0.0"


def test_schedulers_serve_the_queue_of_the_apis() -> None:
    for environment in (ENVIRONMENT, {**ENVIRONMENT, "QUEUE": "other"}):
        commands = {name: arguments(service["command"]) for name, service in ours(environment).items()}
        assert commands["scheduler"]["queue"] == (commands["api"]["queue"],)


def test_default_entrypoint_is_a_file_of_the_mounted_folder() -> None:
    scheduler = ours()["scheduler"]
    folder, place, mode = scheduler["volumes"][0].split(":")
    assert (place, mode) == ("/work", "ro")
    assert (DEPLOY / folder / arguments(scheduler["command"])["entrypoint"]).is_file()


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_that_rollbook_reads(name: str) -> None:
    service = ours()[name]
    named = {value for option, value in arguments(service["command"]).items() if option in KEY_OPTIONS and value}
    assert named <= set(service["environment"])
    assert set(service["environment"]) <= READ_FROM_THE_ENVIRONMENT | named


def test_references_with_our_prefix_are_variables_that_rollbook_reads() -> None:
    given = {name for service in ours().values() for name in service["environment"]}
    assert {name for name, _, _ in references() if name.startswith("ROLLBOOK_")} <= given


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_secret_that_is_not_set_is_asked_for(name: str) -> None:
    missing = {other: text for other, text in ENVIRONMENT.items() if other != name}
    for environment in (missing, {**missing, name: ""}):
        with pytest.raises(UnsetVariable, match=f"^{name}: set it to "):
            services(environment)
    assert {kind for found, kind, _ in references() if found == name} == {"?"}


def test_everything_else_has_a_default() -> None:
    assert {kind for name, kind, _ in references() if name not in ENVIRONMENT} == {"-"}


def test_file_holds_no_secret() -> None:
    empty = services(dict.fromkeys(ENVIRONMENT, "x"))
    for service in empty.values():
        for name, value in service.get("environment", {}).items():
            if name.endswith(("_KEY", "_PASSWORD")):
                assert value == "x", name
            if match := re.match(r"\w+://[^:]+:([^@]*)@", str(value)):
                assert match[1] == "x", name


def test_user_code_is_near_no_key_of_the_apis() -> None:
    assert set(ours()["scheduler"]["environment"]) == {DATABASE_VARIABLE, KEY_VARIABLE, ARTIFACTS_DIR_ENV}


def test_artifacts_outlive_the_container() -> None:
    scheduler = ours()["scheduler"]
    mounted = {volume.split(":")[1] for volume in scheduler["volumes"]}
    assert scheduler["environment"][ARTIFACTS_DIR_ENV] in mounted


@pytest.mark.parametrize("name", ["api", "scheduler"])
def test_processes_start_on_a_database_that_is_up_to_date(name: str) -> None:
    conditions = {other: how["condition"] for other, how in ours()[name]["depends_on"].items()}
    assert conditions == {"postgres": "service_healthy", "upgrade": "service_completed_successfully"}


def test_upgrade_waits_for_the_database_and_is_not_repeated() -> None:
    upgrade = services()["upgrade"]
    assert upgrade["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert upgrade["restart"] == "no"


def test_what_serves_is_started_again_and_has_a_health_check() -> None:
    for name, service in services().items():
        if name != "upgrade":
            assert service["restart"] == "unless-stopped"
            assert seconds(service["healthcheck"]["timeout"]) <= seconds(service["healthcheck"]["interval"])


def test_nobody_is_killed_while_it_ends_in_order() -> None:
    defaults = SchedulerSettings(database_url="", entrypoint="", queues=())
    limit_sec = scheduler_child(defaults).stop_limit_sec
    assert limit_sec > defaults.drain_sec + defaults.clean_up_sec + defaults.force_sec
    assert seconds(ours()["scheduler"]["stop_grace_period"]) > limit_sec
    assert seconds(ours()["api"]["stop_grace_period"]) > API_STOP_LIMIT_SEC


def test_ports_are_open_to_this_host_only_and_lead_to_the_apis() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    ((address, range_, port),) = [text.split(":") for text in published.pop("api")]
    assert not published
    assert address == "127.0.0.1"
    assert int(port) == arguments(ours()["api"]["command"])["port"]
    first, last = map(int, range_.split("-"))
    assert last - first + 1 >= ours()["api"]["deploy"]["replicas"]


def test_health_of_a_scheduler_is_a_command_of_ours() -> None:
    program, *command = health_command(ours()["scheduler"])
    assert program == "rollbook"
    assert arguments(command)["command"] == "rollbook db check"
