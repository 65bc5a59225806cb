"""All commands together, and what becomes of the errors they raise."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from . import (
    archiving,
    changing,
    doctor,
    draining,
    following,
    keeping,
    output,
    processes,
    reading,
    replaying,
    rescoring,
    trace,
)
from .failures import DEBUG_VARIABLE, FAILED, CommandError, describe

USED_WRONGLY = 2
INTERRUPTED = 130

# The base of all complaints about arguments. Typer does not export it, and had it from another package before.
_UsageError: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="rollbook",
    help="Run agent rollouts on a ledger that loses none.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        output.put(f"rollbook {metadata.version('rollbook')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Run agent rollouts on a ledger that loses none."""


def _demo() -> int:
    """Run the multiplication example end to end and show what the ledger knows of it."""
    from rollbook.cli.demo import run_demo

    return run_demo()


_COMMANDS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("demo", _demo, "Run an example and show its results."),
    ("serve", processes.serve, "Take rollouts over HTTP and run them."),
    ("scheduler", processes.scheduler, "Run rollouts that wait in the ledger."),
    ("rollouts", reading.rollouts, "List rollouts, the newest first."),
    ("show", reading.show, "Show one rollout with its attempts."),
    ("trace", trace.trace, "Show what is known of one rollout of a task."),
    ("events", following.events, "Print events, old ones and new ones."),
    ("cancel", changing.cancel, "Ask to end rollouts."),
    ("rescore", rescoring.rescore, "Score rollouts that are over once more."),
    ("drain", draining.drain, "Close admission; wait until all is done."),
    ("replay", replaying.replay, "Fold all events; compare; look back."),
    ("backup", archiving.backup, "Copy an SQLite ledger in use."),
    ("doctor", doctor.doctor, "Check a deployment; say what to fix."),
    ("secret-key", keeping.secret_key, "Print a new secret key."),
)
for _name, _command, _summary in _COMMANDS:
    app.command(_name, short_help=_summary)(_command)
app.add_typer(keeping.audit, name="audit", short_help="Check that no event was changed.")
app.add_typer(archiving.ledger, name="ledger", short_help="Archive what is over, verify it.")
app.add_typer(keeping.database, name="db", short_help="Make or migrate a ledger.")


def run(arguments: Sequence[str]) -> int:
    """Carry a command out; the exit code. Whatever goes wrong is one line on stderr."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments) or ["--help"], prog_name="rollbook", standalone_mode=False)
    except output.OutputClosed:
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except _UsageError as error:
        return _fail(f"{_sentence(error)}; see `{_help_command(error)}`", USED_WRONGLY)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        return _fail(describe(error), error.code if isinstance(error, CommandError) else FAILED)
    return code if isinstance(code, int) else 0


def _fail(line: str, code: int) -> int:
    print(f"rollbook: {line}", file=sys.stderr)
    return code


def _sentence(error: Any) -> str:
    return " ".join(str(error.format_message()).split()).rstrip(".")


def _help_command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'rollbook'} --help"
