"""The anatomy of a background loop: it runs until stopped, fails alone, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from rollbook.ledger.refusals import LedgerError, LedgerUnavailable

log = logging.getLogger(__name__)

FIRST_BACKOFF_SEC = 0.1
LONGEST_BACKOFF_SEC = 5.0


class Loop:
    """Calls ``run_once`` every ``interval_sec``, or sooner when it is woken.

    A call that fails is logged, shown in ``trouble`` until one succeeds, and repeated with back-off. Stopping waits
    for the call under way: a half-done claim would belong to nobody.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[None]],
        *,
        interval_sec: float,
        longest_backoff_sec: float = LONGEST_BACKOFF_SEC,
    ) -> None:
        self.name = name
        self.trouble: str | None = None
        self._run_once = run_once
        self._interval_sec = interval_sec
        self._longest_backoff_sec = longest_backoff_sec
        self._woken = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first call comes at once."""
        self._woken.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Call ``run_once`` soon."""
        self._woken.set()

    async def stop(self) -> None:
        """No further call; returns when the one under way is done."""
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_SEC
        while True:
            await self._pause(self._interval_sec)
            if self._stopping:
                return
            try:
                await self._run_once()
            except Exception as error:
                if self.trouble is None:
                    self._tell(error)
                self.trouble = f"{type(error).__name__}: {error}"
                await self._rest(backoff)
                backoff = min(backoff * 2, self._longest_backoff_sec)
            else:
                if self.trouble is not None:
                    log.info("%s: all is well again", self.name)
                self.trouble = None
                backoff = FIRST_BACKOFF_SEC

    def _tell(self, error: Exception) -> None:
        """A traceback is for what nobody foresaw."""
        log.log(
            logging.WARNING if isinstance(error, LedgerUnavailable) else logging.ERROR,
            "%s: failed, to be tried again with back-off: %s",
            self.name,
            error,
            exc_info=None if isinstance(error, LedgerError) else error,
        )

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _rest(self, seconds: float) -> None:
        # A wake-up must not turn the back-off into a busy loop; only stopping cuts it short.
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._stopping and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await self._pause(left)
        self._woken.set()
