"""`rollbook doctor`: whether this deployment can work, and what to do where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Annotated

import sqlalchemy as sa
import typer

from rollbook.backends.entrypoint import check_entrypoint, load_entrypoint
from rollbook.backends.errors import EntrypointError
from rollbook.ledger.checkup import check_up
from rollbook.ledger.database import database_of
from rollbook.ledger.diagnosis import Diagnosis, ill, well
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url

from . import options, output
from .failures import FAILED

_SHOWN = {"ok": "ok", "warning": "look", "error": "FIX"}


def doctor(
    entrypoint: Annotated[
        str | None,
        typer.Argument(
            help="Load this as `serve` would, too, and see whether this machine has what it needs.",
            metavar="ENTRYPOINT",
            show_default=False,
        ),
    ] = None,
    *,
    database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL,
    json: options.Json = False,
) -> int:
    """Check database, schema, keys, clocks, disk and processes, and say what to fix; exit code 1 if something must be.

    With an entrypoint its code is loaded, and the sandboxes that its tasks run in are tried. It takes seconds,
    whatever the ledger holds; `audit verify` is what reads all events.
    """
    url = parse_url(database_url)
    tell = _ignore if json else _tell
    found = asyncio.run(_examine(url, tell))
    if entrypoint is not None:
        found.append(_tried(entrypoint))
        tell(found[-1])
    errors = sum(diagnosis.level == "error" for diagnosis in found)
    warnings = sum(diagnosis.level == "warning" for diagnosis in found)
    if json:
        output.put_json({"ledger": database_of(url).describe(), "well": not errors, "diagnoses": found})
    elif errors or warnings:
        output.put(f"\n{errors} to fix, {warnings} to look at\n")
    else:
        output.put("\nall is well\n")
    return FAILED if errors else 0


async def _examine(url: sa.URL, tell: Callable[[Diagnosis], None]) -> list[Diagnosis]:
    found = []
    async for diagnosis in check_up(url):
        tell(diagnosis)
        found.append(diagnosis)
    return found


def _tried(entrypoint: str) -> Diagnosis:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what user code prints is none of what is told here
            backend = load_entrypoint(entrypoint)
            check_entrypoint(entrypoint, backend)
    except EntrypointError as error:
        says, _, fix = str(error).partition("; ")
        return ill("entrypoint", says, fix=fix or "do as the message says")
    return well(
        "entrypoint", f"{entrypoint} can be loaded, and this machine has what its {type(backend).__name__} needs"
    )


def _ignore(_: Diagnosis) -> None:
    """All is told at the end."""


def _tell(diagnosis: Diagnosis) -> None:
    shown = output.printable(f"{diagnosis.subject}: {diagnosis.text}")
    output.put(f"{_SHOWN[diagnosis.level]:<5} {shown}\n")
    if diagnosis.fix is not None:
        output.put(f"      -> {output.printable(diagnosis.fix)}\n")
