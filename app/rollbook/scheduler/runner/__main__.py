"""`python -m rollbook.scheduler.runner`: started by a scheduler only."""

from __future__ import annotations

import sys

from .child import main

if __name__ == "__main__":
    sys.exit(main())
