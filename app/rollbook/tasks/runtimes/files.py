"""Reading and writing below a folder whose owner may plant symbolic links, pipes and endless files in it."""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UnsafePathError

__all__ = ["make_folders", "parts_below", "read_file", "write_file"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_below(path: str, *, root: str, workdir: str) -> tuple[str, ...]:
    """The names that lead from `root` to `path`, all three as programs see them.

    Raises UnsafePathError where the path leads elsewhere, ValueError where it is none.
    """
    if not path or "\0" in path:
        raise ValueError(f"not a path: {path!r}")
    whole = posixpath.normpath(posixpath.join(workdir, path))
    whole = "/" + whole.lstrip("/")
    if root != "/" and not whole.startswith(f"{root}/"):
        raise UnsafePathError(f"{path!r} is outside of the runtime's folder; name one below {root}")
    parts = tuple(part for part in whole.removeprefix(root).split("/") if part)
    if not parts:
        raise UnsafePathError(f"{path!r} is the folder itself; name a file in it")
    return parts


def read_file(root: Path, parts: Sequence[str], *, limit_bytes: int) -> bytes:
    """The content of a plain file. Raises as `Runtime.read` does."""
    shown = "/".join(parts)
    with _parent(root, parts) as parent:
        try:
            # Not blocking: a pipe without a writer would hold the opening up for ever.
            file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UnsafePathError(f"{shown} is a symbolic link; it was not followed") from error
            raise
        with os.fdopen(file, "rb") as source:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
            if not stat.S_ISREG(status.st_mode):
                raise UnsafePathError(f"{shown} is no plain file")
            data = source.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise UnsafePathError(f"{shown} is larger than {limit_bytes} bytes; pass limit_bytes to read more")
    return data


def write_file(root: Path, parts: Sequence[str], data: bytes, *, mode: int, owner: int | None) -> None:
    """Write a file whole or not at all; what was made belongs to `owner` (a user id), if given.

    Raises as `Runtime.write` does.
    """
    make_folders(root, parts[:-1], owner=owner)
    with _parent(root, parts) as parent:
        # Written beside and renamed: whatever stands in the file's place is replaced and never opened.
        beside = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(beside, flags, 0o600, dir_fd=parent)
        try:
            with os.fdopen(file, "wb") as target:
                target.write(data)
                target.flush()
                if owner is not None:
                    os.fchown(file, owner, owner)
                os.fchmod(file, mode)
            os.rename(beside, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=parent)
            raise


def make_folders(root: Path, parts: Sequence[str], *, owner: int | None) -> None:
    """Make the folders that are not there yet; those that are keep their owner."""
    for depth, name in enumerate(parts, start=1):
        with _parent(root, parts[:depth]) as parent:
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError:
                continue
            if owner is not None:
                os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)


@contextmanager
def _parent(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """The folder of the last name, opened step by step: each step from the one before, and through no link."""
    folder = os.open(root, _FOLDER)
    try:
        for depth, name in enumerate(parts[:-1], start=1):
            try:
                below = os.open(name, _FOLDER, dir_fd=folder)
            except OSError as error:
                shown = "/".join(parts[:depth])
                if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, folder):
                    raise UnsafePathError(f"{shown} is a symbolic link; it was not followed") from error
                raise type(error)(error.errno, error.strerror, shown) from error
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
