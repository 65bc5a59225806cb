"""The end of what a command writes: bounded, read from a pipe without ever holding the command up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

__all__ = ["OUTPUT_LIMIT_BYTES", "STARTED", "OutputTail"]

OUTPUT_LIMIT_BYTES = 256 * 1024
"""How much of each, output and errors, is kept unless a runtime is told otherwise."""

STARTED = b"\x06"
"""What a launcher writes to the error output just before it becomes the command: the byte ACK."""

_CHUNK_BYTES = 64 * 1024
_LARGEST_PIPE_BYTES = 1024 * 1024
"""What a pipe holds at most (the kernel's default for `pipe-max-size`)."""


class OutputTail:
    """Reads a pipe until everyone has closed it, and keeps the last `limit` bytes."""

    def __init__(self, descriptor: int, *, limit: int, on_start: Callable[[], None] | None = None) -> None:
        """`on_start` is called once if the first byte is `STARTED`, which is no output then."""
        self._descriptor: int | None = descriptor
        self._limit = limit
        self._on_start = on_start
        self._kept = bytearray()
        self._read = 0
        self._discards = False
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._take)

    @property
    def data(self) -> bytes:
        """The last `limit` bytes so far."""
        return bytes(self._kept[-self._limit :]) if self._limit else b""

    @property
    def dropped(self) -> int:
        """How many bytes came before those of `data`."""
        return max(self._read - self._limit, 0)

    def finish(self) -> None:
        """Take what the pipe holds now; what comes later is read and dropped.

        A server that the command left behind may hold the pipe, and would end by writing to one that is closed.
        """
        taken = 0
        while self._descriptor is not None and taken < _LARGEST_PIPE_BYTES and (size := self._take()):
            taken += size
        self._discards = True

    @property
    def is_open(self) -> bool:
        """Whether somebody may still write."""
        return self._descriptor is not None

    def close(self) -> None:
        """Read no more. May be called again."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not chunk:
            self.close()
            return 0
        if not self._discards:
            self._keep(chunk)
        return len(chunk)

    def _keep(self, chunk: bytes) -> None:
        if self._on_start is not None:
            on_start, self._on_start = self._on_start, None
            if chunk.startswith(STARTED):
                chunk = chunk[len(STARTED) :]
                on_start()
        self._read += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * self._limit + _CHUNK_BYTES:  # seldom, so that a flood is not copied for each chunk
            del self._kept[: len(self._kept) - self._limit]
