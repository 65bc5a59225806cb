"""The options that several commands share, and settings made from them."""

from __future__ import annotations

import ipaddress
import math
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from rollbook.backends.entrypoint import entrypoint_name
from rollbook.backends.errors import EntrypointError
from rollbook.ledger.urls import DEFAULT_DATABASE_URL
from rollbook.logformat import LogFormat
from rollbook.settings import DATABASE_VARIABLE, LOG_FORMAT_VARIABLE, ApiSettings, SchedulerSettings
from rollbook.supervisor import EX_CONFIG

from .failures import CommandError

DatabaseUrl = Annotated[
    str,
    typer.Option("--database-url", envvar=DATABASE_VARIABLE, help="Where the ledger is.", metavar="URL"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, times in microseconds since the epoch (UTC).")]
Runners = Annotated[int, typer.Option(min=1, help="Processes that run the workflow.")]
MaxConcurrent = Annotated[
    int | None, typer.Option(min=1, help="Rollouts at once in each runner, instead of the backend's own limit.")
]
MEBIBYTE = 1024 * 1024
RunnerMemory = Annotated[
    int | None,
    typer.Option(min=64, help="Address space of each runner, in MiB; what asks for more gets a MemoryError."),
]
NoModelCalls = Annotated[
    bool,
    typer.Option(
        "--no-model-calls",
        help="Record no model calls: workflows get the trainer's own URL, with nothing of Rollbook's in front of it.",
    ),
]
MetricsPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Serve the scheduler's metrics for Prometheus on this port.")
]
MetricsHost = Annotated[str, typer.Option(help="The address for the scheduler's metrics; they ask for no key.")]
OnShutdown = Annotated[
    Literal["release", "cancel"],
    typer.Option(help="What becomes of rollouts that still run at the end: queued again, or cancelled."),
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(help="The environment variable that holds the key which requests must bear.", metavar="NAME"),
]
OperatorApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        help="The environment variable that holds the key for operators' routes: /rollouts, /events and /metrics then "
        "take no other, /health and /schema take both.",
        metavar="NAME",
    ),
]
MaxQueueDepth = Annotated[int | None, typer.Option(min=1, help="How many rollouts may wait; more are refused.")]
MaxAttempts = Annotated[int, typer.Option(min=1, help="How often a rollout is started whose process died.")]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", envvar=LOG_FORMAT_VARIABLE, help="Lines of logs for people, or JSON for programs."),
]
ResultWait = Annotated[float, typer.Option(help="How long a poll waits for a change, in seconds.")]
LeaseTimeout = Annotated[float, typer.Option(help="A rollout that nobody polled for so long ends, in seconds.")]

_OPERATOR_KEY = "--operator-api-key-env"
_DEFAULTS = ApiSettings(database_url=DEFAULT_DATABASE_URL, queue="default")
_SCHEDULER_DEFAULTS = SchedulerSettings(database_url=DEFAULT_DATABASE_URL, entrypoint="", queues=())
METRICS_HOST = _SCHEDULER_DEFAULTS.metrics_host
HOST = _DEFAULTS.host
PORT = _DEFAULTS.port
MAX_ATTEMPTS = _DEFAULTS.max_attempts
RESULT_WAIT_SEC = _DEFAULTS.result_wait_timeout_sec
LEASE_TIMEOUT_SEC = _DEFAULTS.polling_lease_timeout_sec


def queue_name(queue: str | None, entrypoint: str | None) -> str:
    """The queue to use: the one named, else the entrypoint's.

    Raises:
        typer.BadParameter: blank, neither is given, or the entrypoint is no such thing.
    """
    try:
        name = None if entrypoint is None else entrypoint_name(entrypoint)
    except EntrypointError as error:
        raise typer.BadParameter(str(error), param_hint="ENTRYPOINT") from error
    if queue is not None:
        if not queue.strip():
            raise typer.BadParameter("it is blank; leave it out to use the entrypoint's name", param_hint="--queue")
        return queue
    if name is None:
        raise typer.BadParameter("without an ENTRYPOINT, say which queue admissions go to", param_hint="--queue")
    return name


def check_file(entrypoint: str | None) -> None:
    """Raises:
    CommandError: the entrypoint names a file that is not there. What the file holds is for the runners to say.
    """
    if entrypoint is None:
        return
    place = entrypoint if entrypoint.endswith(".py") else entrypoint.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise CommandError(f"{place}: there is no such file; check the path", code=EX_CONFIG)


def api_keys(variable: str | None, operator_variable: str | None) -> tuple[str | None, str | None]:
    """The keys of requests and of operators' requests, as two environment variables hold them.

    Raises:
        typer.BadParameter: a variable is not set, or blank, or both keys are the same.
    """
    if variable is not None and variable == operator_variable:
        raise typer.BadParameter(f"{variable} holds the other key; name another variable", param_hint=_OPERATOR_KEY)
    key, operator_key = api_key(variable), api_key(operator_variable, option=_OPERATOR_KEY)
    if key is not None and key == operator_key:
        raise typer.BadParameter(
            f"{operator_variable} holds the same key as {variable}; make another, or leave the option out",
            param_hint=_OPERATOR_KEY,
        )
    return key, operator_key


def api_key(variable: str | None, *, option: str = "--api-key-env") -> str | None:
    """The key that an environment variable holds; None where no variable is named.

    The variable is gone then: the processes that run user code inherit this one's environment.

    Raises:
        typer.BadParameter: the variable is not set, or blank; ``option`` named it.
    """
    if variable is None:
        return None
    key = os.environ.get(variable)
    if key is None or not key.strip():
        state = "not set" if key is None else "blank"
        raise typer.BadParameter(f"{variable} is {state}; put the key into it", param_hint=option)
    return os.environ.pop(variable)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_times(*, result_wait_sec: float, lease_timeout_sec: float) -> None:
    """Raises:
    typer.BadParameter: a wait that is not positive, or a lease that a waiting poll would outlast.
    """
    if not (math.isfinite(result_wait_sec) and result_wait_sec > 0):
        raise typer.BadParameter(
            f"{result_wait_sec:g} is no time to wait; give seconds above 0", param_hint="--result-wait"
        )
    if not (math.isfinite(lease_timeout_sec) and lease_timeout_sec > result_wait_sec):
        raise typer.BadParameter(
            f"{lease_timeout_sec:g} would end rollouts whose poll still waits; give more than --result-wait "
            f"({result_wait_sec:g})",
            param_hint="--lease-timeout",
        )
