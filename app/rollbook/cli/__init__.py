"""The command line: `rollbook`, and the one place where what goes wrong becomes a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["SERVER_EXTRA", "main", "missing_extra"]

SERVER_EXTRA = frozenset(
    {
        "aiosqlite",
        "alembic",
        "cryptography",
        "httptools",
        "litestar",
        "prometheus_client",
        "rich",
        "sqlalchemy",
        "typer",
        "uvicorn",
        "uvloop",
    }
)
"""What the extra `server` installs and a base install lacks."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Ends the process: 0 done, 1 failed, 2 used wrongly; never with a traceback."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        line = missing_extra(error)
        if line is None:
            raise
        print(f"rollbook: {line}", file=sys.stderr)
        sys.exit(1)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to do about a module that is not there; None if no extra of Rollbook would bring it."""
    name = (error.name or "").partition(".")[0]
    if name not in SERVER_EXTRA:
        return None
    return f'the command line needs {name}; install it with: pip install "rollbook[server]"'
