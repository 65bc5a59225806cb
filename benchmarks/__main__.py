"""The command: runs the named benchmarks, or those that take minutes together, and prints their tables."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from . import page
from .places import PLACES, POSTGRESQL, SQLITE, Place, place
from .report import Report, terminal

BENCHMARKS = (
    "server",
    "ledger",
    "writers",
    "claims",
    "replay",
    "wake",
    "polls",
    "demo",
    "interception",
    "rollouts",
    "million",
)
BY_NAME_ONLY = frozenset({"million"})
NOT_ON_POSTGRESQL = frozenset({"demo", "interception", "rollouts"})
"""What always uses a ledger of its own, or none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 0 whether or not the floors are met: a busy machine is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--database", choices=PLACES, default=SQLITE, help="where the ledgers lie (default: sqlite)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {page.PATH.name}")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    left_out = BY_NAME_ONLY | (NOT_ON_POSTGRESQL if options.database == POSTGRESQL else frozenset())
    names = options.names or [name for name in BENCHMARKS if name not in left_out]
    with place(options.database) as here:
        for name in names:
            report = run(name, here, quick=options.quick)
            print(terminal(report), end="\n\n", flush=True)
            if options.write:
                page.write(report, here, quick=options.quick)
    return 0


def run(name: str, here: Place, *, quick: bool) -> Report:
    """Run one benchmark; each loads what it needs only when it runs."""
    report: Report = importlib.import_module(f".{name}", __package__).run(here, quick=quick)
    return report


if __name__ == "__main__":
    sys.exit(main())
