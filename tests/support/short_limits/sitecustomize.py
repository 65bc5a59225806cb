"""A process of Rollbook's that soon gives a database up: Python imports this at its start where the folder is in
PYTHONPATH. What it does when its limits are reached is the same, whatever they are."""

from __future__ import annotations

import sys

if {"rollbook.server", "rollbook.scheduler"} & set(sys.orig_argv):
    from rollbook.ledger.postgres import connecting, reads, store

    connecting.CONNECT_LIMIT_SEC = 2.0
    reads.SHORT_READ_LIMIT_SEC = reads.TURN_LIMIT_SEC = 2.0
    reads.RETRY_SEC = store.RETRY_SEC = 1.0
    store.WRITE_LIMIT_SEC = 3.0
