"""Which processes count as running: live ones, and neither those that are gone nor those that nobody waited for."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from rollbook.ledger.liveness import _runs

LIMIT_SEC = 60


def test_process_runs_until_it_ends_whether_its_parent_noticed_or_not() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert _runs(process.pid)
        descriptor = os.pidfd_open(process.pid)
        process.kill()
        assert select.select([descriptor], [], [], LIMIT_SEC)[0]
        os.close(descriptor)
        assert not _runs(process.pid)  # a zombie: it was not waited for yet
    finally:
        process.communicate(timeout=LIMIT_SEC)
    assert not _runs(process.pid)


def test_first_process_always_runs() -> None:
    assert _runs(1)


def test_own_number_is_of_a_process_of_the_past() -> None:
    assert not _runs(os.getpid())
