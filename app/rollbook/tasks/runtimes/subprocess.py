"""Programs in a folder of this machine. Keeps them in order; keeps nobody out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.threads import in_thread

from .errors import UnsupportedNetworkError
from .homes import Home
from .leftovers import HOME_VARIABLE, end_processes_of
from .lifetime import OwnedRuntime

__all__ = ["SubprocessRuntime"]


class SubprocessRuntime(OwnedRuntime):
    """A folder, and a process group for each command. **It does not isolate.**

    Programs run as the user of this process, read and write whatever that user may, reach the whole network and can
    signal this process. For programs that a model writes, use `BubblewrapRuntime`.

    Variables of this process are not passed on, `PATH` excepted. `memory_mb` limits the address space of each process
    (not their sum). On stop everything is killed that carries the runtime's mark in its environment or has its current
    folder inside the runtime's; a program that cleans its environment and moves elsewhere gets away.
    """

    enforces = frozenset({"memory_mb"})

    @property
    def workdir(self) -> str:
        return str(self._home_path() / "work")

    @property
    def folder(self) -> Path:
        self._check()
        return self._root()

    async def allow(self, policy: NetworkPolicy, *, keep: Sequence[tuple[str, int]] = ()) -> None:
        """Take a policy that asks for nothing: one that allows all, or the default, which a task has that names none.

        Raises:
            UnsupportedNetworkError: any other; programs reach the whole network here.
        """
        self._check()
        if not policy.unrestricted and policy != NetworkPolicy():
            raise UnsupportedNetworkError(
                "SubprocessRuntime cannot keep programs off the network, and the task's policy names hosts to allow or "
                'deny; run it in BubblewrapRuntime, or give it NetworkPolicy(allow=("*",))'
            )

    @property
    def _shown_root(self) -> str:
        return self.workdir

    def _root(self) -> Path:
        return self._home_path() / "work"

    def _variables(self) -> dict[str, str]:
        home = self._home_path()
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home / "home"),
            "TMPDIR": str(home / "tmp"),
            "LANG": "C.UTF-8",
        }

    def _marks(self) -> dict[str, str]:
        return {HOME_VARIABLE: str(self._home_path())}

    def _command(self, launch: Sequence[str]) -> list[str]:
        if self._setpriv is None:
            return list(launch)
        return [self._setpriv, "--pdeathsig", "KILL", "--", *launch]  # ends with this process, killed or not

    async def _come_up(self, home: Home) -> None:
        self._setpriv = shutil.which("setpriv")
        home.path.chmod(0o700)
        for name in ("work", "home", "tmp"):
            (home.path / name).mkdir(mode=0o700)
        self._undo.push_async_callback(self._end_processes)

    async def _end_processes(self) -> None:
        home = self._home_path()
        await self._end_running()
        await in_thread(partial(end_processes_of, home))

    def _home_path(self) -> Path:
        if self._home is None:
            self._check()
            raise AssertionError("a runtime that is up has a home")
        return self._home
