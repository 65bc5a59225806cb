"""A runtime's folder on this host: made, locked while its owner lives, removed, and swept where its owner was killed.

All homes lie in one folder for each user. A home is locked by its owner, and the kernel opens that lock when the
owner ends, however it ends; so a home that can be locked is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rollbook.tasks.threads import in_thread

from .errors import RuntimeFailedError, RuntimeUnavailableError
from .leftovers import end_processes_of
from .processes import call

__all__ = ["Home", "default_parent", "sweep"]

_TRIES = 3
_TOOL_VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def default_parent() -> Path:
    """Where homes lie unless told otherwise: a folder of this user's in the system's folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"rollbook-runtimes-{os.geteuid()}"


class Home:
    """One runtime's folder. Others cannot list it, but pass through it where they know a name inside."""

    def __init__(self, parent: Path) -> None:
        """Make it. Raises RuntimeUnavailableError where `parent` is not a folder of this user alone."""
        _prepare(parent)
        with _locked(parent):  # a sweep must not see it between the two steps
            self.path = parent / secrets.token_hex(6)
            self.path.mkdir(mode=0o711)
            try:
                self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                self.path.rmdir()
                raise
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path.chmod(0o711)  # whatever the umask

    async def remove(self) -> None:
        """Remove it with all that is in it.

        Raises:
            RuntimeFailedError: it is still there.
        """
        try:
            await _remove(self.path)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


async def sweep(parent: Path) -> list[Path]:
    """Remove the homes whose owners have been killed, and end what still runs in them. Returns them."""
    if not parent.is_dir():
        return []
    abandoned: list[tuple[Path, int]] = []
    try:
        with _locked(parent):
            for path in parent.iterdir():
                if path.is_symlink() or not path.is_dir():
                    continue
                try:
                    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # its owner has just removed it
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                else:
                    abandoned.append((path, lock))
        for path, _ in abandoned:
            await in_thread(partial(end_processes_of, path))
            await _remove(path)
    finally:
        for _, lock in abandoned:
            os.close(lock)
    return [path for path, _ in abandoned]


async def _remove(path: Path) -> None:
    """By the system's own tool: it goes down any depth, follows no link, and a thread of ours does not wait for it."""
    said = ""
    for _ in range(_TRIES):
        code, said = await call(["/bin/rm", "-rf", "--one-file-system", "--", str(path)], env=_TOOL_VARIABLES)
        if code == 0:
            return
        # Folders without rights for their owner, or one that was filled while it was emptied.
        await call(["/bin/chmod", "-R", "u+rwX", "--", str(path)], env=_TOOL_VARIABLES)
    raise RuntimeFailedError(f"the folder of a runtime could not be removed; remove {path} by hand: {said}")


def _prepare(parent: Path) -> None:
    with suppress(FileExistsError):
        parent.mkdir(mode=0o711, parents=True)
        parent.chmod(0o711)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise RuntimeUnavailableError(
            f"{parent} is not a folder that only this user can write to; remove it, or pass another as `parent`"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
