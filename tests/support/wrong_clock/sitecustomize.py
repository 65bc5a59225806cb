"""A host whose clock is wrong: Python imports this at its start where the folder is in PYTHONPATH, before all else.

`TEST_CLOCK_AHEAD_SEC` says by how much. The monotonic clock is nobody's to set, and stays as it is.
"""

from __future__ import annotations

import os
import time

_AHEAD_NS = int(os.environ["TEST_CLOCK_AHEAD_SEC"]) * 1_000_000_000
_true_ns = time.time_ns


def _time_ns() -> int:
    return _true_ns() + _AHEAD_NS


def _time() -> float:
    return _time_ns() / 1_000_000_000


time.time_ns = _time_ns
time.time = _time
