"""The keeper of a sandbox: the process that holds its namespaces, which every command enters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .errors import RuntimeFailedError, RuntimeUnavailableError
from .leftovers import HOME_VARIABLE
from .processes import HostProcess

__all__ = ["Keeper"]

_UP_SEC = 30.0
_GONE_SEC = 10.0
_STATUS_BYTES = 4096


class Keeper:
    """Made before the sandbox is up, so that it can be stopped whatever became of it."""

    def __init__(self, make: Callable[[int], Sequence[str]], *, home: Path) -> None:
        """Start it. `make` gives the command, told which descriptor it reports to.

        It carries the mark of `home` from its first moment to its last: bubblewrap ends with this process only once
        it has come so far as to ask for that, and what a killed one leaves before has nothing else to be known by.

        Raises:
            RuntimeFailedError: the command could not be started.
        """
        self._status, theirs = os.pipe()
        try:
            env = {"PATH": os.defpath, HOME_VARIABLE: str(home)}
            self._process = HostProcess(make(theirs), env=env, cwd="/", descriptors=[theirs])
        except BaseException:
            os.close(self._status)
            raise
        finally:
            os.close(theirs)
        self.first = 0
        """The host's number of the sandbox's first process, once it is up."""

    @property
    def alive(self) -> bool:
        """Whether the sandbox is up.

        Its first process lets go of its memory before it ends the others, and of its number after; so a command that
        ended with the sandbox finds it dead here.
        """
        if not self.first or self._process.ended:
            return False
        try:
            return bool(Path(f"/proc/{self.first}/cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            return False

    async def come_up(self) -> None:
        """Wait until the sandbox is ready: mounts too, which are made after its first process is.

        Raises:
            RuntimeUnavailableError: it cannot be made on this machine.
            RuntimeFailedError: it was not there within 30 seconds.
        """
        try:
            async with asyncio.timeout(_UP_SEC):
                is_up = await self._process.come_up()
        except TimeoutError as error:
            raise RuntimeFailedError(f"the sandbox was not ready within {_UP_SEC:g} s") from error
        if not is_up:
            said = self._process.stderr.data.decode(errors="replace").strip()
            raise RuntimeUnavailableError(
                f"bubblewrap could not make a sandbox here: {said or 'it said nothing'}. It takes user namespaces "
                "without rights of root; containers and hardened systems may forbid them "
                "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
            )
        report, _, _ = os.read(self._status, _STATUS_BYTES).partition(b"\n")
        self.first = msgspec.json.decode(report)["child-pid"]

    async def stop(self) -> None:
        """End the sandbox with everything in it: the kernel kills all that its first process is the ancestor of.

        Raises:
            RuntimeFailedError: it was still there ten seconds later.
        """
        try:
            self._process.kill_below()
            async with asyncio.timeout(_GONE_SEC):
                await self._process.wait()
        except TimeoutError as error:
            raise RuntimeFailedError(f"the sandbox did not end: process {self._process.pid}") from error
        finally:
            self._process.close()
            os.close(self._status)
