"""`rollbook doctor`: whether this deployment can work, and what to do where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sqlalchemy as sa

from rollbook.ledger.checkup import check_up
from rollbook.ledger.database import database_of
from rollbook.ledger.diagnosis import Diagnosis
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, parse_url

from . import options, output
from .failures import FAILED

_SHOWN = {"ok": "ok", "warning": "look", "error": "FIX"}


def doctor(*, database_url: options.DatabaseUrl = DEFAULT_DATABASE_URL, json: options.Json = False) -> int:
    """Check database, schema, keys, clocks, disk and processes, and say what to fix; exit code 1 if something must be.

    It takes seconds, whatever the ledger holds; `audit verify` is what reads all events.
    """
    url = parse_url(database_url)
    found = asyncio.run(_examine(url, _ignore if json else _tell))
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


def _ignore(_: Diagnosis) -> None:
    """All is told at the end."""


def _tell(diagnosis: Diagnosis) -> None:
    shown = output.printable(f"{diagnosis.subject}: {diagnosis.text}")
    output.put(f"{_SHOWN[diagnosis.level]:<5} {shown}\n")
    if diagnosis.fix is not None:
        output.put(f"      -> {output.printable(diagnosis.fix)}\n")
