"""What a check-up says of the files of an SQLite ledger: place, room, rights, log, key."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from rollbook.ledger.diagnosis import Diagnosis, doubtful, ill, size_text, well

from .engines import database_path, key_path, lock_path

LEAST_FREE_BYTES = 100 * 1024**2
LITTLE_FREE_BYTES = 1024**3
LARGE_LOG_BYTES = 512 * 1024**2
OLDEST_SQLITE = (3, 35, 0)

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "smb3", "smbfs", "virtiofs"}
)
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mountinfo")


def check_files(url: sa.URL) -> Iterator[Diagnosis]:
    """The files and where they lie. A ledger that is not there, or cannot be read, is told alone."""
    path = database_path(url)
    if not path.is_file():
        yield ill("database", f"there is no ledger at {path}", fix="make one with `rollbook db upgrade`")
        return
    unreadable = _unreadable(path, lock_path(url))
    if unreadable is not None:
        yield ill("database", unreadable, fix="run this as the user that Rollbook runs as, or change their owner")
        return
    yield well("database", f"{path}, {size_text(path.stat().st_size)}, SQLite {sqlite3.sqlite_version}")
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        yield ill("SQLite", f"it is {sqlite3.sqlite_version}", fix="use a Python with SQLite 3.35 or later")
    yield _file_system(path)
    yield _room(path)
    yield from _log(path)
    yield from _key(key_path(url))


def _unreadable(path: Path, lock: Path) -> str | None:
    """What this user may not do, of all that a process of ours does with the files."""
    files = [path, lock, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    denied = [file.name for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)]
    if not os.access(path.parent, os.W_OK | os.X_OK):
        denied.append(f"the folder {path.parent}")
    return f"this user may not read and write {', '.join(denied)}" if denied else None


def _file_system(path: Path) -> Diagnosis:
    kind = file_system(path, mounts=MOUNTS)
    if kind in NETWORK_FILE_SYSTEMS:
        return ill(
            "file system",
            f"{path.parent} is on a network file system ({kind}), whose locks do not keep processes apart",
            fix="move the ledger to a local disk, or to PostgreSQL",
        )
    if kind in MEMORY_FILE_SYSTEMS:
        return doubtful(
            "file system",
            f"{path.parent} is in memory ({kind}); the ledger is gone when the machine restarts",
            fix="move the ledger to a disk",
        )
    return well("file system", kind or "of an unknown kind")


def file_system(path: Path, *, mounts: Path) -> str | None:
    """The type of the file system that a path lies on; None where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found: tuple[int, str] | None = None
    place = path.resolve()
    for line in lines:
        # id, parent, device, root, mount point, options …, "-", type, source, options
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        # The last one mounted at a place hides those before it.
        if place.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = (len(point.parts), tail.split(" ", 1)[0])
    return None if found is None else found[1]


def _room(path: Path) -> Diagnosis:
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    says = f"{size_text(free)} are free"
    if free < LEAST_FREE_BYTES:
        return ill("disk", says, fix="free some space: without room nothing is admitted and no result is kept")
    if free < LITTLE_FREE_BYTES:
        return doubtful("disk", says, fix="free some space, or archive old events (`rollbook ledger archive`)")
    return well("disk", says)


def _log(path: Path) -> Iterator[Diagnosis]:
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > LARGE_LOG_BYTES:
        yield doubtful(
            "write-ahead log",
            f"{log.name} has {size_text(size)}: a long read keeps it from being folded in",
            fix="end long reads of the file, such as an open shell with a transaction or a stuck backup",
        )


def _key(path: Path) -> Iterator[Diagnosis]:
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield ill(
            "key file",
            f"others may read {path}, and with it the keys and URLs of rollouts",
            fix=f"run `chmod 600 {path}`",
        )
