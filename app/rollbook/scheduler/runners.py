"""What a scheduler expects of a runner, whatever runs it: a child process or a thread of an embedded server."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollbook_client.events import Phase

from .wire import Assignment, Finished, Recorded

UNBOUNDED_SLOTS = 10_000
"""Slots of a runner whose backend sets no bound."""


class Lost(msgspec.Struct, frozen=True):
    """An execution ended without a result. ``released``: through no fault of its own, so it does not count."""

    key: int
    reason: str
    released: bool = False


class Reports(Protocol):
    """Whom a runner tells; called on the scheduler's event loop."""

    def entered(self, key: int, phase: Phase) -> None:
        """The execution entered a phase."""

    def recorded(self, message: Recorded) -> None:
        """The execution records something of itself."""

    def finished(self, report: Finished) -> None:
        """The execution is over and its slot is free."""

    def lost(self, loss: Lost) -> None:
        """The execution is gone and its slot is free."""

    def slots_changed(self) -> None:
        """Slots became free or went away."""

    def broken(self, reason: str) -> None:
        """The entrypoint cannot be loaded: the scheduler must end."""


class RunnerPool(Protocol):
    """All runners of one scheduler."""

    @property
    def capacity(self) -> int:
        """Slots of all healthy runners."""

    @property
    def free(self) -> int:
        """Slots that could take an execution now."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with the runners, for health; None when nothing is."""

    async def start(self, reports: Reports) -> None:
        """Start the runners; they report by ``slots_changed`` when they are ready."""

    def run(self, assignment: Assignment) -> None:
        """Hand an execution to the runner with the most free slots. There must be a free one."""

    def cancel(self, key: int) -> None:
        """Request an execution's end."""

    async def kill(self) -> None:
        """End all executions at once; nothing more is reported of them."""

    async def stop(self, timeout_sec: float) -> None:
        """Let the backends shut down (at most so many seconds), then end the runners."""
