"""When the folders that killed owners left are removed: as runtimes start, and by a command for those who killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.tasks.runtimes import lifetime
from rollbook.tasks.runtimes.homes import Home
from rollbook.tasks.runtimes.subprocess import SubprocessRuntime


def abandoned(parent: Path) -> Path:
    """A home that nobody holds."""
    folder = parent / "abandoned"
    folder.mkdir(parents=True)
    (folder / "file").write_text("left")
    return folder


async def start_one(parent: Path) -> None:
    runtime = SubprocessRuntime(parent=parent)
    await runtime.start()
    await runtime.stop()


async def test_what_is_left_while_a_process_has_runtimes_is_removed_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "homes"
    await start_one(parent)
    left = abandoned(parent)
    await start_one(parent)
    assert left.exists(), "it has looked a moment ago"
    monkeypatch.setattr(lifetime, "_SWEEP_PAUSE_SEC", 0.0)
    await start_one(parent)
    assert list(parent.iterdir()) == []


async def test_command_removes_what_nobody_holds_and_says_so(tmp_path: Path) -> None:
    parent = tmp_path / f"rollbook-runtimes-{os.geteuid()}"
    left = abandoned(parent)
    held = Home(parent)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rollbook.tasks.runtimes"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{left}\n", "")
    assert list(parent.iterdir()) == [held.path]
    await held.remove()
