"""The demo: from the command to its end, once everything is installed."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from .machine import Patience
from .places import Place
from .processes import rollbook
from .report import Floor, Report, Table, median

SUBJECT = "`rollbook demo`, 10 rows × 4 attempts"
MOST_SEC = 15.0
LIMIT_SEC = 120.0


class DemoFailed(RuntimeError):
    """The demo did not end with code 0; the message ends with what it wrote."""


def run(place: Place, *, quick: bool) -> Report:
    """Time it, in an empty folder each, where it has a ledger of its own whatever ``place`` is."""
    del place
    patience = Patience()
    seconds = []
    for _ in range(1 if quick else 3):
        patience.wait()
        seconds.append(_timed())
    return Report(
        "demo",
        SUBJECT,
        (
            Table(
                "without a terminal",
                ("runs", "median s", "max s"),
                [(str(len(seconds)), median(seconds), max(seconds))],
            ),
        ),
        (Floor("median", median(seconds), most=MOST_SEC, unit=" s"),),
        patience.notes,
    )


def _timed() -> float:
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        start = time.perf_counter()
        done = subprocess.run(
            rollbook("demo"),
            cwd=Path(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SEC,
        )
        took = time.perf_counter() - start
    if done.returncode != 0:
        raise DemoFailed(f"`rollbook demo` ended with code {done.returncode}: {(done.stdout + done.stderr)[-2_000:]}")
    return took
