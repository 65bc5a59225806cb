"""Where an execution stands, its phase and its stage: marked at once, and told to the scheduler a little later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rollbook.backends.base import ExecutionRequest
from rollbook.backends.failures import deadline_failure
from rollbook.scheduler.wire import Entered, Staged, ToScheduler
from rollbook.sdk.span import Stage
from rollbook_client.events import Phase

from .marks import Whereabouts

TELL_DELAY_SEC = 0.005
"""Told so much later, or with the end if that comes first: a short rollout then costs one commit."""


class Standing:
    """One execution's. Call it on the runner's loop.

    ``emit`` takes what the scheduler is told, ``on_move`` the key and the packed `Place` at once: what is told waits
    for the loop, and code that blocks that is judged by its place.
    """

    def __init__(self, key: int, *, emit: Callable[[ToScheduler], None], on_move: Callable[[int, bytes], None]) -> None:
        self.where = Whereabouts(key)
        self.phases: list[Phase] = []
        """Entered and not told."""
        self._emit = emit
        self._on_move = on_move
        self._request: ExecutionRequest | None = None
        self._latest = ("", 0)
        """Name and begin of the stage that the backend told of last."""
        self._moved = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: ExecutionRequest) -> None:
        """The backend is asked. Until it tells of a stage, and if it never does, the request's budgets hold."""
        self._request = request
        self._go_by(request.agent_timeout_sec, "agent", "workflow", queued_sec=request.queued_sec)

    def enter(self, phase: Phase) -> None:
        """It enters a phase."""
        self.phases.append(phase)
        self.where.move(phase=phase)
        if phase == "grading" and self._request is not None:
            self._go_by(self._request.grader_timeout_sec, "grading", "grader")
        self._on_move(self.where.key, self.where.packed)
        self._tell_soon()

    def enter_stage(self, stage: Stage | None) -> None:
        """The backend tells of a stage: None where one has ended. What it does between two has no deadline.

        One that is named as the one before is its next step.
        """
        self._request = None
        if stage is None:
            self._move(Stage(name="", began_at=0))
            return
        name, began_at = self._latest
        self._latest = (stage.name, began_at if name == stage.name else stage.began_at)
        self._move(stage, began_at=self._latest[1])

    def tell(self) -> None:
        """Tell now."""
        self._stop_timer()
        for phase in self.phases:
            self._emit(Entered(self.where.key, phase))
        self.phases.clear()
        if self._moved:
            self._moved = False
            self._emit(self.where.stage)

    def end(self) -> None:
        """Nothing more is told."""
        self._stop_timer()

    def _go_by(self, limit_sec: float | None, name: str, who: str, *, queued_sec: float = 0.0) -> None:
        ends_at = None if limit_sec is None else time.monotonic() + limit_sec - queued_sec
        late = deadline_failure(who, limit_sec or 0.0, queued_sec=queued_sec).message
        self._move(Stage(name=name, began_at=time.time_ns() // 1000, ends_at=ends_at, late=late))

    def _move(self, stage: Stage, *, began_at: int | None = None) -> None:
        key = self.where.key
        began_at = stage.began_at if began_at is None else began_at
        self.where.move(stage=Staged(key, stage.name, began_at, stage.ends_at, stage.late))
        self._on_move(key, self.where.packed)
        self._moved = True
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_DELAY_SEC, self.tell)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
