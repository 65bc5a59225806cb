"""Cancelling an operation at its n-th await: while it waits there, as its answer arrives, or twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, Literal

type When = Literal["waiting", "answered", "twice"]

WHENS: tuple[When, ...] = ("waiting", "answered", "twice")
"""`answered`: what was waited for is there already, and is lost with the cancellation."""


async def cancelled_at(number: int, work: Coroutine[Any, Any, Any], *, when: When) -> bool:
    """Run `work` as a task of its own and cancel it at its n-th await; whether it came to that and ended cancelled.

    Raises what `work` raises otherwise.
    """
    seen = 0

    @coroutine
    def watched() -> Generator[Any, Any, Any]:
        nonlocal seen
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            seen += 1
            if seen == number or (when == "twice" and seen == number + 1):
                if when == "answered" and asyncio.isfuture(waited_for):
                    waited_for.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            value = error = None
            try:
                value = yield waited_for
            except BaseException as raised:
                error = raised

    async def run() -> Any:
        return await watched()

    task = asyncio.create_task(run(), name="operation")
    await asyncio.wait([task])
    if task.cancelled():
        assert seen >= number
        return True
    task.result()
    assert seen < number or when == "answered", f"the cancellation at await {number} was swallowed"
    return False
