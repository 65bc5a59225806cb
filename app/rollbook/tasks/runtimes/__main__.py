"""`python -m rollbook.tasks.runtimes`: removes what killed owners of runtimes left in the usual place; prints that."""

from __future__ import annotations

import asyncio
import sys

from .errors import RuntimeFailedError
from .homes import default_parent, sweep


def main() -> int:
    """The process: returns its exit code, 1 where something could not be removed, with why on standard error."""
    try:
        for path in asyncio.run(sweep(default_parent())):
            sys.stdout.write(f"{path}\n")
    except RuntimeFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
