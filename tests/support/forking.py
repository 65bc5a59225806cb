"""Processes that begin with everything imported, for tests that start and kill many."""

from __future__ import annotations

import multiprocessing

LIMIT_SEC = 60.0
FORKED = multiprocessing.get_context("forkserver")
"""Starts them from a process of its own, which has no threads, and has done nothing but import."""
FORKED.set_forkserver_preload(["tests.support.busy_writer", "tests.contract.ledger.archiver"])
