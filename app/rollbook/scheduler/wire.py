"""What a scheduler and its runner say to each other, and the frames it travels in.

Both ends run the same code, so messages are unversioned MessagePack structs, each after its length in four bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, cast

import msgspec

from rollbook_client.events import Phase, StageSpan

MAX_FRAME_BYTES = 1 << 30
"""More than any message: a longer frame is no frame, but what user code wrote into its runner's pipe."""
READ_BUFFER_BYTES = 256 * 1024


class Assignment(msgspec.Struct, frozen=True, tag="run", array_like=True):
    """Scheduler to runner: execute this. ``key`` is the scheduler's own number of the execution, never 0; ``attempt``
    and ``scheduler`` are how the ledger calls it, for logs."""

    key: int
    rollout_id: str
    request: bytes
    chat_completions_url: str
    llm_api_key: str | None
    queued_sec: float
    attempt: int | None = None
    scheduler: str | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """Scheduler to runner: end this execution."""

    key: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown", array_like=True):
    """Scheduler to runner: no more work comes; release the backend and exit."""


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """Runner to scheduler: the entrypoint is loaded; so many executions at a time (null: without a bound)."""

    max_concurrent: int | None


class Broken(msgspec.Struct, frozen=True, tag="broken", array_like=True):
    """Runner to scheduler: the entrypoint cannot be loaded, for this reason."""

    reason: str


class Entered(msgspec.Struct, frozen=True, tag="entered", array_like=True):
    """Runner to scheduler: the execution entered a phase."""

    key: int
    phase: Phase


class Staged(msgspec.Struct, frozen=True, tag="staged", array_like=True):
    """Runner to scheduler: what the execution does now, and how long it may.

    ``name`` as in spans, empty for what has none. ``began_at`` is the wall clock's, in microseconds; ``ends_at`` the
    deadline on the monotonic clock, which both ends share, in seconds, null for none. ``late`` is the message of the
    failure once that has passed.
    """

    key: int
    name: str = ""
    began_at: int = 0
    ends_at: float | None = None
    late: str = ""


class Recorded(msgspec.Struct, frozen=True, tag="recorded", array_like=True):
    """Runner to scheduler: what the execution records of itself, each a type and its fields (see `records`).

    All of an execution's records are sent before its `Finished`.
    """

    key: int
    records: tuple[tuple[str, bytes], ...]


class Finished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """Runner to scheduler: the execution is over and cleaned up. ``phases`` are those not reported before."""

    key: int
    status: Literal["success", "failure", "cancelled"]
    phases: tuple[Phase, ...] = ()
    sample: bytes | None = None
    reduced: bool = False
    reward: float | None = None
    metrics: dict[str, float | None] = {}
    trajectory: bytes | None = None
    trajectory_saved: Literal["messages", "own", "off"] = "off"
    err_message: str | None = None
    err_category: str | None = None
    spans: tuple[StageSpan, ...] = ()


ToRunner = Assignment | Cancel | Shutdown
ToScheduler = Ready | Broken | Entered | Staged | Recorded | Finished


class FrameTooLongError(ValueError):
    """A message is too long for the pipe; its text says how long it is and what to do."""


class FramePipe[Incoming](asyncio.BufferedProtocol):
    """One end of the pipe: calls ``on_message`` for each message and ``on_close`` once when the other end is gone."""

    def __init__(
        self,
        incoming: type,
        on_message: Callable[[Incoming], None],
        on_close: Callable[[], None],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._on_message = on_message
        self._on_close = on_close
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_close()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._buffer = self._buffer + bytes(len(self._buffer))  # a view of the old one may be held still
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        start = 0
        messages: list[Incoming] = []
        with memoryview(self._buffer) as view:
            while self._filled - start >= 4:
                size = int.from_bytes(view[start : start + 4], "big")
                if size > self._max_frame_bytes:
                    raise ValueError("the other end of the pipe sends no messages; the pipe is closed")
                if self._filled - start - 4 < size:
                    break
                messages.append(self._decoder.decode(view[start + 4 : start + 4 + size]))
                start += 4 + size
        if start:
            self._keep(start)
        for message in messages:
            self._on_message(message)

    def _keep(self, start: int) -> None:
        # A new buffer: the transport may still hold a view of the old one, which cannot shrink meanwhile.
        left = self._buffer[start : self._filled]
        self._filled = len(left)
        if len(left) > READ_BUFFER_BYTES or len(self._buffer) > READ_BUFFER_BYTES:
            self._buffer = bytearray(max(READ_BUFFER_BYTES, len(left) * 2))
        self._buffer[: len(left)] = left

    def send(self, *messages: msgspec.Struct) -> None:
        """Send messages in one write; silently dropped once the other end is gone (``on_close`` tells).

        Raises `FrameTooLongError` for a message that the other end would not take, and sends none of them then.
        """
        if self._transport is None or self._transport.is_closing():
            return
        out = bytearray()
        for message in messages:
            start = len(out)
            out += b"\0\0\0\0"
            self._encoder.encode_into(message, out, start + 4)
            size = len(out) - start - 4
            if size > self._max_frame_bytes:
                raise FrameTooLongError(
                    f"it takes {size} bytes and the limit is {self._max_frame_bytes}; return a smaller result"
                )
            out[start : start + 4] = size.to_bytes(4, "big")
        self._transport.write(bytes(out))

    def close(self) -> None:
        """Close this end."""
        if self._transport is not None:
            self._transport.close()
