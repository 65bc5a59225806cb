"""Shared memory between a runner and its scheduler: a pulse of the event loop, and whose code runs this moment.

It is readable while the runner's interpreter is locked up in C code and after the runner died, so the scheduler can
name the rollout that blocked or killed its runner.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from struct import Struct

CURRENT_OFFSET = 8
CURRENT_END = GRADING_OFFSET = 16
SIZE = 24
PULSE = Struct("=Q")
CURRENT = Struct("=Q")


class Marks:
    """Three numbers in shared memory: how often the loop came round, whose code runs, and who entered grading last.

    The last two are keys of attempts, 0 for none.
    """

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

    @property
    def grading(self) -> int:
        """The key of the attempt that was the last to enter its grading phase; 0 when none was."""
        value: int = CURRENT.unpack_from(self.memory, GRADING_OFFSET)[0]
        return value

    def enter_grading(self, key: int) -> None:
        """Note that an attempt's grader is about to run: a report could be stuck behind a grader that blocks."""
        CURRENT.pack_into(self.memory, GRADING_OFFSET, key)

    def beat(self) -> None:
        """Advance the pulse."""
        PULSE.pack_into(self.memory, 0, self.pulse + 1)

    def close(self) -> None:
        """Let go of the memory."""
        self.memory.close()
        os.close(self.descriptor)
