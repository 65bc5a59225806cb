"""An answer on its way: written once by its call, read from its start by any number of programs.

A program that retries joins what another connection began, or gets again what was complete but never arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from msgspec import Struct

LAG_MAX_BYTES = 256 * 1024
"""How far the writer may be ahead of the quickest reader; it then waits, and so does the model server."""


class Head(Struct, frozen=True):
    """Status and headers; `length` is the body's where it is known, else the body goes out in chunks."""

    status: int
    headers: list[tuple[bytes, bytes]]
    length: int | None = None


class Relay:
    """The head and the body so far. Its call writes, `Reader` reads."""

    def __init__(self, *, on_empty: Callable[[], None], on_joined: Callable[[], None]) -> None:
        self.head: Head | None = None
        self.ended = False
        self.broken = False
        """Ended before its end: readers cut their connections."""
        self.delivered = False
        """Some program got all of it."""
        self.size = 0
        self._chunks: list[bytes] = []
        self._readers: list[Reader] = []
        self._on_empty = on_empty
        self._on_joined = on_joined
        self._room: asyncio.Future[None] | None = None

    @property
    def readers(self) -> int:
        """How many programs are getting it."""
        return len(self._readers)

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer at once."""
        self.start(Head(status, headers, length=len(body)))
        self.write(body)
        self.end()

    def start(self, head: Head) -> None:
        """Write the head; it must come first."""
        self.head = head
        self._wake()

    def write(self, data: bytes) -> None:
        """Add to the body."""
        if data:
            self._chunks.append(data)
            self.size += len(data)
            self._wake()

    def end(self, *, broken: bool = False) -> None:
        """Nothing follows."""
        self.ended = True
        self.broken = broken
        self._wake()

    async def room(self) -> None:
        """Wait until the quickest reader is near, or nobody reads."""
        while self._readers and self.size - max(reader.position for reader in self._readers) > LAG_MAX_BYTES:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    def reader(self) -> Reader:
        """Join; the reader must be left again."""
        reader = Reader(self)
        self._readers.append(reader)
        self._on_joined()
        return reader

    def _leave(self, reader: Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self._make_room()
            if not self._readers:
                self._on_empty()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()


class Reader:
    """One program's way through an answer; use it as a context."""

    def __init__(self, relay: Relay) -> None:
        self.position = 0
        """How many bytes of the body it has had."""
        self.gone = False
        """Whether its program has hung up."""
        self._relay = relay
        self._next = 0
        self._waiting: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._relay._leave(self)

    def leave(self) -> None:
        """The program has hung up: whoever waits here is woken."""
        self.gone = True
        self._relay._leave(self)
        self.wake()

    def wake(self) -> None:
        """Have `head` and `read` look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def head(self) -> Head | None:
        """The head once it is there; None if the program hung up or the answer broke before it."""
        relay = self._relay
        while relay.head is None and not self.gone and not relay.ended:
            await self._wait()
        return None if self.gone else relay.head

    async def read(self) -> bytes:
        """What has come since the last time, waiting for it; empty at the end, or when the program hung up."""
        relay = self._relay
        while self._next >= len(relay._chunks) and not relay.ended and not self.gone:
            await self._wait()
        if self.gone:
            return b""
        chunks = relay._chunks[self._next :]
        self._next += len(chunks)
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.position += len(data)
        relay._make_room()
        return data

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
