"""Marking whose code runs: every step of an attempt's tasks notes its key in the memory shared with the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

from rollbook.scheduler.memory import CURRENT, CURRENT_END, CURRENT_OFFSET, Marks

PULSE_INTERVAL_SEC = 0.25

current_key: ContextVar[int] = ContextVar("rollbook_attempt_key", default=0)
"""The attempt that the running task belongs to, inherited by every task it starts."""


class _Marked(Coroutine[Any, Any, Any]):
    """A coroutine each of whose steps is marked with the attempt it belongs to."""

    def __init__(self, inner: Coroutine[Any, Any, Any], marks: Marks, key: int) -> None:
        self._inner = inner
        self._memory = marks.memory
        self._key = CURRENT.pack(key)

    def send(self, value: Any) -> Any:
        memory = self._memory
        before = memory[CURRENT_OFFSET:CURRENT_END]
        memory[CURRENT_OFFSET:CURRENT_END] = self._key
        try:
            return self._inner.send(value)
        finally:
            memory[CURRENT_OFFSET:CURRENT_END] = before

    def throw(self, *error: Any) -> Any:
        memory = self._memory
        before = memory[CURRENT_OFFSET:CURRENT_END]
        memory[CURRENT_OFFSET:CURRENT_END] = self._key
        try:
            return self._inner.throw(*error)
        finally:
            memory[CURRENT_OFFSET:CURRENT_END] = before

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
        key = current_key.get() if context is None else context.get(current_key, 0)
        if key and asyncio.iscoroutine(coro):
            coro = _Marked(coro, marks, key)
        return asyncio.Task(coro, loop=loop, **options)

    def beat() -> None:
        marks.beat()
        loop.call_later(PULSE_INTERVAL_SEC, beat)

    loop.set_task_factory(factory)
    beat()
