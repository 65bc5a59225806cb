"""Shared memory between a runner and its scheduler: a pulse of the event loop, and whose code runs, at what.

It is readable while the runner's interpreter is locked up in C code and after the runner died, so the scheduler can
name the rollout that blocked or killed its runner, and knows how long it may: reports wait behind code that blocks.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from struct import Struct

import msgspec

from rollbook_client.events import Phase

from .wire import Staged

PULSE = Struct("=Q")
PLACE_OFFSET = PULSE.size
PLACE = Struct("=Q?qdBB")
"""Key, whether it is being graded, and of the stage: begin, deadline (not a number for none), lengths of the texts."""
TEXT_BYTES = 230
PLACE_SIZE = PLACE.size + TEXT_BYTES
PLACE_END = PLACE_OFFSET + PLACE_SIZE
SIZE = PLACE_END
NAME_BYTES = 30


class Place(msgspec.Struct, frozen=True):
    """Whose code runs, by the key of its attempt, and what that does."""

    key: int
    phase: Phase
    stage: Staged

    def packed(self) -> bytes:
        """In `PLACE_SIZE` bytes; texts that are too long are cut."""
        stage = self.stage
        name = stage.name.encode()[:NAME_BYTES]
        late = stage.late.encode()[: TEXT_BYTES - len(name)]
        ends_at = math.nan if stage.ends_at is None else stage.ends_at
        head = PLACE.pack(self.key, self.phase == "grading", stage.began_at, ends_at, len(name), len(late))
        return (head + name + late).ljust(PLACE_SIZE, b"\0")


class Marks:
    """Two things in shared memory: how often the loop came round, and whose code runs, with the place it is at."""

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
        value: int = PLACE.unpack_from(self.memory, PLACE_OFFSET)[0]
        return value

    @property
    def place(self) -> Place | None:
        """Whose code runs now, and at what; None when none does, or where it changes this moment."""
        packed = self.memory[PLACE_OFFSET:PLACE_END]
        key, grading, began_at, ends_at, name_size, late_size = PLACE.unpack_from(packed)
        if key == 0 or packed != self.memory[PLACE_OFFSET:PLACE_END]:
            return None
        name, late = packed[PLACE.size :][:name_size], packed[PLACE.size + name_size :][:late_size]
        stage = Staged(
            key=key,
            name=name.decode("utf-8", "replace"),
            began_at=began_at,
            ends_at=None if math.isnan(ends_at) else ends_at,
            late=late.decode("utf-8", "replace"),
        )
        return Place(key, "grading" if grading else "running", stage)

    def move(self, key: int, place: bytes) -> None:
        """Note that an attempt has come to another place, packed as `Place` does, if it is its code that runs."""
        if self.current == key:
            self.memory[PLACE_OFFSET:PLACE_END] = place

    def beat(self) -> None:
        """Advance the pulse."""
        PULSE.pack_into(self.memory, 0, self.pulse + 1)

    def close(self) -> None:
        """Let go of the memory."""
        self.memory.close()
        os.close(self.descriptor)
