"""The five spans of a rollout: boot, set-up, agent, finalize, scoring. Each is begun once and closed on every path."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Literal

from rollbook.traces.trace import Span, Trace
from rollbook_client.events import StageSpan, StageTimed

__all__ = ["STAGES", "Stage", "Stages"]

type Stage = Literal["boot", "setup", "agent", "finalize", "scoring"]

STAGES: tuple[Stage, ...] = ("boot", "setup", "agent", "finalize", "scoring")


class Stages:
    """Writes the spans into a trace, and tells each one as it ends.

    Start and end are the wall clock's, in microseconds since the epoch; the length is measured on the monotonic
    clock, so that a wall clock which is set back makes no span negative.
    """

    def __init__(self, trace: Trace, tell: Callable[[StageTimed], None]) -> None:
        self._trace = trace
        self._tell = tell
        self._open: dict[Stage, tuple[int, int, int]] = {}
        """Of each that has begun: its place in the trace, the wall clock's start and the monotonic one's."""

    @property
    def open(self) -> Collection[Stage]:
        """Those that have begun and not ended."""
        return self._open.keys()

    def begin(self, stage: Stage) -> None:
        """The stage begins now."""
        started_at = time.time_ns() // 1000
        self._open[stage] = (len(self._trace.spans), started_at, time.monotonic_ns())
        self._trace.spans.append(Span(stage=stage, started_at=started_at, ended_at=None))

    def end(self, stage: Stage) -> None:
        """The stage ends now; nothing happens if it is not going on."""
        begun = self._open.pop(stage, None)
        if begun is None:
            return
        index, started_at, started = begun
        ended_at = started_at + (time.monotonic_ns() - started) // 1000
        self._trace.spans[index] = Span(stage=stage, started_at=started_at, ended_at=ended_at)
        self._tell(StageTimed(attempt=0, spans=(StageSpan(stage, started_at, ended_at),)))

    def end_all(self) -> None:
        """Whatever goes on ends now."""
        for stage in tuple(self._open):
            self.end(stage)

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        """The stage is the enclosed block, however that ends."""
        self.begin(stage)
        try:
            yield
        finally:
            self.end(stage)
