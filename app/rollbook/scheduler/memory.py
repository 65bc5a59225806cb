"""Shared memory between a runner and its scheduler: a pulse of the event loop, and whose code runs this moment.

It is readable while the runner's interpreter is locked up in C code and after the runner died, so the scheduler can
name the rollout that blocked or killed its runner.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from struct import Struct

SIZE = 16
CURRENT_OFFSET = 8
PULSE = Struct("=Q")
CURRENT = Struct("=Q")


class Marks:
    """Sixteen bytes of shared memory: a counter that the loop advances, and the key of the running attempt or 0."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.memory = mmap.mmap(descriptor, SIZE)

    @classmethod
    def create(cls) -> Marks:
        """New shared memory; its descriptor is handed to the runner."""
        with tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            return cls(os.dup(file.fileno()))

    @property
    def pulse(self) -> int:
        """How often the runner's loop has come round."""
        value: int = PULSE.unpack_from(self.memory)[0]
        return value

    @property
    def current(self) -> int:
        """The key of the attempt whose code runs now; 0 when none does."""
        value: int = CURRENT.unpack_from(self.memory, CURRENT_OFFSET)[0]
        return value

    def beat(self) -> None:
        """Advance the pulse."""
        PULSE.pack_into(self.memory, 0, self.pulse + 1)

    def close(self) -> None:
        """Let go of the memory."""
        self.memory.close()
        os.close(self.descriptor)
