"""An event loop whose clock jumps to the next timer instead of waiting, for tests of timeouts and back-offs.

Nothing here waits for the network: use it with transports that answer in process.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at second 1,000 and whose time passes only when everything waits for a timer."""

    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits and no timer is set: in real time this would hang for ever")
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
        return ready


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a fresh virtual-time loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time in seconds."""
    return asyncio.get_running_loop().time()
