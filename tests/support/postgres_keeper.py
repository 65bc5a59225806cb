"""Keeps a PostgreSQL server running while somebody uses it: a program of its own, which outlives a killed test.

Whoever uses the server holds a shared lock on the file `users.lock` of its folder. The kernel lets go of it when that
process ends, however it ends; then this program ends the server and removes the folder. It imports the standard library
alone, so that it starts at once. Its argument is a JSON object; `Keeper.run` says what it does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOK_PAUSE_SEC = 0.05
START_PAUSE_SEC = 0.005
START_LIMIT_SEC = 60.0
END_LIMIT_SEC = 10.0
# Of prctl(2).
_SIGNAL_OF_PARENTS_DEATH = 1
_ADOPT_ORPHANS = 36
_LIBC = ctypes.CDLL(None)


class Keeper:
    """Runs commands in a folder, as another user where one is given."""

    def __init__(self, folder: Path, user: list[int] | None) -> None:
        self._folder = folder
        self._user = user
        self._users = (folder / "users.lock").open("rb")
        _LIBC.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)

    def run(self, commands: list[list[str]]) -> int:
        """Run the commands one after the other until one fails; the last one is the server.

        Prints the server's process id once it takes connections, and returns when all its processes have ended. What
        the commands print goes to the file `log`.
        """
        for number, command in enumerate(commands, start=1):
            code = self._keep(command, is_server=number == len(commands))
            if self._is_abandoned():
                shutil.rmtree(self._folder)
                return 0
            if code:
                return code
        return 0

    def _keep(self, command: list[str], *, is_server: bool) -> int:
        child = self._start(command)
        ended = os.pidfd_open(child.pid)
        deadline = time.monotonic() + START_LIMIT_SEC
        ready = False
        while not select.select([ended], [], [], LOOK_PAUSE_SEC if ready else START_PAUSE_SEC)[0]:
            if self._is_abandoned() or (not ready and time.monotonic() > deadline):
                _end(child)
            elif not ready and is_server and self._takes_connections(child.pid):
                ready = True
                with suppress(BrokenPipeError):  # whoever waited for it is gone, which the lock will tell
                    print(child.pid, flush=True)
        os.close(ended)
        code = child.wait()
        _end_orphans()
        return code

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        user, group = self._user or (None, None)
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _takes_connections(self, pid: int) -> bool:
        """What pg_ctl looks at too: the eighth line of the server's own file, if that is not an earlier server's."""
        try:
            lines = (self._folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].startswith("ready")

    def _is_abandoned(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _end_with_parent() -> None:
    """Should somebody kill this very program, then the kernel tells the server to quit."""
    _LIBC.prctl(_SIGNAL_OF_PARENTS_DEATH, signal.SIGQUIT)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Nobody needs the data any more: quit without a checkpoint, also where a test has stopped the process."""
    child.send_signal(signal.SIGQUIT)
    child.send_signal(signal.SIGCONT)
    try:
        child.wait(END_LIMIT_SEC)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_orphans() -> None:
    """A server that was killed leaves processes, beside which the next one does not start; they are ours by now."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    sys.exit(Keeper(Path(task["folder"]), task["user"]).run(task["commands"]))
