"""Reads of one thing each, made together: when a batch ends many rollouts, many callers ask for a result at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Gathering[Key, Value]:
    """One read for all keys that are asked for in one turn of the event loop, up to a limit."""

    def __init__(self, read: Callable[[list[Key]], Awaitable[dict[Key, Value]]], *, most: int) -> None:
        """``read`` finds the values of at most ``most`` keys; those that have none it leaves out."""
        self._read = read
        self._most = most
        self._waiting: list[tuple[Key, asyncio.Future[Value | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, key: Key) -> Value | None:
        """The key's value, if it has one; fails as the read does."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start, loop)
        future: asyncio.Future[Value | None] = loop.create_future()
        self._waiting.append((key, future))
        return await future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), self._most):
            task = loop.create_task(self._carry_out(waiting[start : start + self._most]), name="ledger-gathered-read")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, waiting: list[tuple[Key, asyncio.Future[Value | None]]]) -> None:
        try:
            found = await self._read(list(dict.fromkeys(key for key, _ in waiting)))
        except BaseException as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for key, future in waiting:
            if not future.done():
                future.set_result(found.get(key))
