"""Whose process counts as gone: only one of this machine, since it was last started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook.ledger import commands as cmd
from rollbook.ledger import liveness
from rollbook.ledger.ledger import Ledger


async def test_process_of_another_machine_with_the_same_name_is_not_taken_for_gone(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = liveness.host_name()
    another = tmp_path / "boot_id"
    another.write_text("3f1c9c3e-another-machine\n")
    monkeypatch.setattr(liveness, "BOOT_ID_FILE", another)
    there = liveness.host_name()
    monkeypatch.undo()
    assert here.partition(" ")[0] == there.partition(" ")[0]
    for name, host in (("here", here), ("there", there)):
        # Our own number, of a member that this process does not have, is one of the past.
        pid = os.getpid()
        await ledger.submit(cmd.Register(name, kind="scheduler", host=host, pid=pid, dead_after_us=15_000_000))
    assert await liveness.known_dead(ledger.reader, "scheduler") == ("here",)
