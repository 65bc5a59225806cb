"""The stages of an execution: the one that goes on, with its limit, and the time that one took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec


class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock start and end of a stage (`queue`, `agent`, `grading`), in microseconds since the epoch, UTC."""

    stage: str
    started_at: int
    ended_at: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that goes on, for those who watch over it from outside.

    `name` as in spans, empty for work that has none. `began_at` is the wall clock's, in microseconds since the epoch,
    `ends_at` its deadline on the monotonic clock, in seconds; None where it has none. `late` is the message of the
    failure once that has passed.
    """

    name: str
    began_at: int
    ends_at: float | None = None
    late: str = ""


@contextmanager
def timed(stage: str, into: list[StageSpan]) -> Iterator[None]:
    """Append the span of the enclosed block, however it ends.

    The length is measured on the monotonic clock: a wall clock that is set back cannot make a span negative.
    """
    started_at = time.time_ns() // 1000
    started = time.monotonic_ns()
    try:
        yield
    finally:
        length = (time.monotonic_ns() - started) // 1000
        into.append(StageSpan(stage=stage, started_at=started_at, ended_at=started_at + length))
