"""Runtimes as a test makes them, and what the host says of what they left: processes, folders, open files."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeUnavailableError, SubprocessRuntime
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from rollbook.tasks.runtimes.sandbox import is_reachable
from tests.support.processes import until

RuntimeMaker = Callable[..., OwnedRuntime]
NOBODY = 65534


def _has_sandboxes() -> bool:
    """Whether this machine can make sandboxes. The developers' packages bring bubblewrap; the kernel must allow it."""
    try:
        asyncio.run(BubblewrapRuntime.check())
    except RuntimeUnavailableError:
        if os.environ.get("CI"):
            raise  # there, none of these tests may be missing unseen
        return False
    return True


HAS_SANDBOXES = _has_sandboxes()
RUNTIMES: tuple[type[OwnedRuntime], ...] = (
    (SubprocessRuntime, BubblewrapRuntime) if HAS_SANDBOXES else (SubprocessRuntime,)
)
"""The runtimes that this machine has: a test of what holds for all of them runs on each."""


@contextmanager
def open_folder(prefix: str) -> Iterator[Path]:
    """A folder that the sandbox's user may enter, as pytest's own for temporary files are not."""
    path = Path(tempfile.mkdtemp(prefix=f"rollbook-test-{prefix}-"))
    try:
        path.chmod(0o711)
        assert is_reachable(path / "x", NOBODY), f"{path}: nobody cannot enter it; set TMPDIR to a folder for everyone"
        yield path
    finally:
        shutil.rmtree(path)


def executable(path: Path, text: str = "") -> Path:
    """A file that may be run by everybody, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def unique_sleep() -> str:
    """A command that sleeps for very long and can be told from all others of this machine."""
    return f"sleep 9999.{uuid4().int % 10**15:015}"


def running(text: str) -> list[int]:
    """Living processes of this host whose command line, environment or mounts hold the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            told = words + (entry / "environ").read_bytes() + (entry / "mountinfo").read_bytes()
        except OSError:  # it ended while it was looked at
            continue
        if state not in (b"Z", b"X") and text.encode() in told:
            found.append(int(entry.name))
    return found


async def until_running(text: str, *, count: int = 1) -> list[int]:
    """Wait until so many processes hold the text."""
    return await until(lambda: found if len(found := running(text)) >= count else [], what=f"{count} times {text}")


async def until_none_runs(text: str) -> None:
    """Wait until no process holds the text."""
    await until(lambda: not running(text), what=f"the end of {text}")


def open_files() -> dict[str, int]:
    """What this process holds open, by kind and how often; numbers left out, for they are given anew."""
    counts: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            kind = str(entry.readlink()).partition(":")[0]
        except FileNotFoundError:  # the one that reads this folder
            continue
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def first_process(parent: Path) -> int:
    """The first process of the one sandbox whose folder is in `parent`, by its number on this machine."""
    (first,) = (pid for pid in running(str(parent)) if _numbers(pid)[-1] == "1")
    return first


def _numbers(pid: int) -> list[str]:
    """A process's numbers, from this machine's inwards."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NSpid:")).split()[1:]
