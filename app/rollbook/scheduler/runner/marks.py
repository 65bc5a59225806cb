"""Marking whose code runs: every step of an attempt's tasks notes its place in the memory shared with the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

from rollbook.scheduler.memory import PLACE_END, PLACE_OFFSET, Marks, Place
from rollbook.scheduler.wire import Staged
from rollbook_client.events import Phase

PULSE_INTERVAL_SEC = 0.25


class Whereabouts:
    """Where an attempt is, for all of its tasks; changed as it goes on."""

    __slots__ = ("_phase", "key", "packed", "stage")

    def __init__(self, key: int) -> None:
        self.key = key
        self._phase: Phase = "running"
        self.stage = Staged(key)
        self.packed = b""
        """As it stands in the shared memory while code of this attempt runs."""
        self.move(stage=self.stage)

    def move(self, *, phase: Phase | None = None, stage: Staged | None = None) -> None:
        """It has come to another phase, or to another stage."""
        self._phase = phase or self._phase
        self.stage = stage or self.stage
        self.packed = Place(self.key, self._phase, self.stage).packed()


whereabouts: ContextVar[Whereabouts | None] = ContextVar("rollbook_whereabouts", default=None)
"""Those of the attempt that the running task belongs to, inherited by every task it starts."""


class _Marked(Coroutine[Any, Any, Any]):
    """A coroutine each of whose steps is marked with the place of the attempt it belongs to."""

    def __init__(self, inner: Coroutine[Any, Any, Any], marks: Marks, where: Whereabouts) -> None:
        self._inner = inner
        self._memory = marks.memory
        self._where = where

    def send(self, value: Any) -> Any:
        memory = self._memory
        before = memory[PLACE_OFFSET:PLACE_END]
        memory[PLACE_OFFSET:PLACE_END] = self._where.packed
        try:
            return self._inner.send(value)
        finally:
            memory[PLACE_OFFSET:PLACE_END] = before

    def throw(self, *error: Any) -> Any:
        memory = self._memory
        before = memory[PLACE_OFFSET:PLACE_END]
        memory[PLACE_OFFSET:PLACE_END] = self._where.packed
        try:
            return self._inner.throw(*error)
        finally:
            memory[PLACE_OFFSET:PLACE_END] = before

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def mark_tasks(loop: asyncio.AbstractEventLoop, marks: Marks) -> None:
    """From now on, tasks of an attempt mark their steps, and the loop beats the pulse."""

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context")
        where = whereabouts.get() if context is None else context.get(whereabouts)
        if where is not None and asyncio.iscoroutine(coro):
            coro = _Marked(coro, marks, where)
        return asyncio.Task(coro, loop=loop, **options)

    def beat() -> None:
        marks.beat()
        loop.call_later(PULSE_INTERVAL_SEC, beat)

    loop.set_task_factory(factory)
    beat()
