"""What one process's writer does, measured since it was made: distributions with fixed bounds, cheap to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what takes a millisecond on a good day and seconds on a bad one."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class Distribution:
    """How many values lie at or below each bound, and their sum."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend; what lies above the last one is counted too."""
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Take a value in."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with how many values do not exceed it."""
        found = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            found += count
            yield bound, found


class WriterMeters:
    """The group commit of one process."""

    def __init__(self) -> None:
        self.append_sec = Distribution(SECONDS)
        """From the submission of a command to its commit."""
        self.batch_commands = Distribution(SIZES)
        """Commands in each batch that was committed."""
        self.failed_batches = 0
        """Batches that could not be written."""
