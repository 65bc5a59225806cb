"""Which members of this host are certainly dead: their process is gone, however fresh their last beat is.

A crash and an immediate restart then need no waiting for beats to become stale.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from .commands import MemberKind
from .reader import Reader

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
"""Linux's name for the time from one start of a machine to the next; no two machines share it."""

_alive_here: set[str] = set()
"""Members of this very process: one process can embed several servers."""


def host_name() -> str:
    """This machine as members are registered with it: its name, and behind a space where its process ids hold.

    That is one process namespace of one run of one kernel. Its name alone is not enough (machines made from one image
    share it), nor is the namespace's: outside of containers it is a constant of the kernel.
    """
    return " ".join(part for part in (socket.gethostname(), _namespace(), _boot_id()) if part)


def _namespace() -> str:
    try:
        return Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def joined(member_id: str) -> None:
    """This process has the member."""
    _alive_here.add(member_id)


def left(member_id: str) -> None:
    """This process has it no more."""
    _alive_here.discard(member_id)


async def known_dead(reader: Reader, kind: MemberKind) -> tuple[str, ...]:
    """Members of a kind on this host whose process is gone.

    Processes of containers often get the same number again, so a member with our own number is one of the past,
    unless this very process made it.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    here = host_name()
    return tuple(
        member.member_id
        for member in await reader.members(kind, 0)
        if member.host == here and member.member_id not in _alive_here and not _runs(member.pid)
    )


def _runs(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it ended and waits for its parent to notice: for ever, in containers whose first process is no init."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
