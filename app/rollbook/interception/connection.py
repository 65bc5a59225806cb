"""One connection to a model server: a request is written, its answer is parsed as it comes.

httptools does the parsing, as it does for the programs' side: with hundreds of streams at once, parsing in Python
would cost more than all else together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools

type Headers = list[tuple[bytes, bytes]]

READ_AHEAD_BYTES = 256 * 1024
"""How much of a body may wait for its reader before the connection is read no further."""
HEAD_MAX_BYTES = 1024 * 1024


class BrokenError(Exception):
    """The connection ended, or said something that is not HTTP, before the answer's end."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.used = False
        """Whether an exchange has been carried before."""
        self.idle_timer: asyncio.TimerHandle | None = None
        self.status = 0
        self.headers: Headers = []
        self._parser = httptools.HttpResponseParser(self)
        self._with_body = True
        self._headers_done = False
        self._head_bytes = 0
        self._complete = True
        self._until_close = False
        self._keeps_alive = False
        self._error: BrokenError | None = None
        self._chunks: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._paused = False
        self._waiting: asyncio.Future[None] | None = None
        self._heard = False
        self._gone = asyncio.Event()

    @property
    def heard(self) -> bool:
        """Whether anything of the answer has come."""
        return self._heard

    @property
    def reusable(self) -> bool:
        """Whether the answer has been read to its end and the server keeps the connection."""
        done = self._complete and not self._chunks and self._keeps_alive
        return done and not self.lost and self.transport is not None and not self.transport.is_closing()

    def send(self, request: bytes, *, with_body: bool = True) -> None:
        """Begin an exchange; an answer to HEAD is one without a body, whatever its headers say."""
        self._with_body = with_body
        self.status = 0
        self.headers = []
        self._head_bytes = 0
        self._headers_done = self._complete = self._until_close = self._heard = False
        assert self.transport is not None
        if not self.lost:
            self.transport.write(request)

    async def head(self, timeout_sec: float | None) -> None:
        """Wait until status and headers are there.

        Raises:
            BrokenError: they will not come.
            TimeoutError: nothing came in time.
        """
        while not self._headers_done:
            await self._wait(timeout_sec)

    async def read(self, timeout_sec: float | None) -> bytes:
        """What of the body has come since the last time, waiting for it; empty at its end.

        Raises:
            BrokenError: the body breaks off here.
            TimeoutError: nothing came in time.
        """
        while not self._chunks:
            if self._complete:
                return b""
            await self._wait(timeout_sec)
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._waiting_bytes = 0
        if self._paused:
            self._paused = False
            assert self.transport is not None
            self.transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is gone, after `abort`."""
        if not self.lost and self.transport is not None:
            await self._gone.wait()

    # What the transport and the parser call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._heard = True
        if not self._headers_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break("the model server's answer is not HTTP", error)
            self.abort()
        if not self._headers_done and self._head_bytes > HEAD_MAX_BYTES:
            self._break(f"the head of the model server's answer is over {HEAD_MAX_BYTES} bytes", None)
            self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer without framing ends so; every other one breaks."""
        self.lost = True
        self._gone.set()
        if self._headers_done and self._until_close and exc is None:
            self._complete = True
        elif not self._complete:
            when = "in the middle of its answer" if self._headers_done else "before it answered"
            self._break(f"the model server hung up {when}", exc)
        self._wake()

    def on_message_begin(self) -> None:
        """Of httptools."""
        if self._complete:  # nobody asked for it, so nothing on this connection can be trusted any more
            raise BrokenError("an answer came to no request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        if not self._headers_done:  # what follows a body in chunks is no header
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Of httptools."""
        self.status = self._parser.get_status_code()
        if self.status < 200:  # an interim answer; the real one follows
            self.headers = []
            return
        self._headers_done = True
        self._keeps_alive = self._parser.should_keep_alive()
        if not self._with_body:
            self._complete, self._keeps_alive = True, False
        self._until_close = not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        """Of httptools."""
        if self._complete:  # a body where none may be
            return
        self._chunks.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes > READ_AHEAD_BYTES and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """Of httptools."""
        if self.status >= 200:
            self._complete = True

    def _break(self, message: str, cause: BaseException | None) -> None:
        if self._error is None:
            self._error = BrokenError(message)
            self._error.__cause__ = cause

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self, timeout_sec: float | None) -> None:
        if self._error is not None:
            raise self._error
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            if timeout_sec is None:
                await self._waiting
            else:
                async with asyncio.timeout(timeout_sec):
                    await self._waiting
        finally:
            self._waiting = None
