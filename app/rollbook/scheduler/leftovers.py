"""What runners leave that did not end by themselves: folders of their runtimes, and programs in them.

A process of its own removes it: what runtimes are is nothing that a scheduler knows.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from .child import public_environment

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "rollbook.tasks.runtimes")


class Leftovers:
    """Looks after each runner that was killed, or died; for several at once it looks once."""

    def __init__(self) -> None:
        self._wanted = False
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """A runner has ended by force: remove soon what it left."""
        self._wanted = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="leftovers")

    async def settle(self, limit_sec: float) -> None:
        """Wait until all is removed; what takes longer is left to the next who looks."""
        if self._looking is not None:
            _, pending = await asyncio.wait([self._looking], timeout=limit_sec)
            if pending:
                log.warning("what killed runners left is not all removed; the next start of a runtime goes on with it")
                self._looking.cancel()

    async def _look(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._remove()
            except OSError as error:
                log.error("what a killed runner left is not removed: %s", error)

    async def _remove(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=public_environment(),
            start_new_session=True,  # it ends by itself, whatever ends us
        )
        removed, said = await process.communicate()
        for path in removed.decode("utf-8", "replace").splitlines():
            log.warning("removed %s, which a killed runner had left", path)
        if process.returncode != 0:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            log.error("what a killed runner left is not removed, code %s: %s", process.returncode, last)
