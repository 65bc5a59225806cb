"""Files that are whole under their name or not there: written under another one, flushed to disk, then renamed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .refusals import LedgerError


class FileRefused(LedgerError):
    """A file cannot be made, or used, so; the message says what to do. Nothing was lost."""


def unfinished_path(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(f"{path.name}.unfinished")


@contextmanager
def sole_writer(path: Path) -> Iterator[int]:
    """A descriptor of the file's unfinished form for the block, for its owner alone.

    Nobody else who asks so writes the same file meanwhile. What the block does not `publish` is removed.

    Raises:
        FileRefused: somebody else does.
        OSError: the folder cannot be written.
    """
    unfinished = unfinished_path(path)
    while True:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileRefused(f"another process writes {path} now; wait for it, or name another file") from None
            # Whoever held it before may have given the file its name meanwhile: then it is not ours to write.
            if not _is_at(descriptor, unfinished):
                continue
            try:
                yield descriptor
            finally:
                if _is_at(descriptor, unfinished):
                    unfinished.unlink()
            return
        finally:
            os.close(descriptor)


def publish(descriptor: int, path: Path) -> None:
    """Give the unfinished file its name; it is on disk then, with its name.

    Raises:
        OSError: it is not.
    """
    os.fsync(descriptor)
    unfinished_path(path).rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
