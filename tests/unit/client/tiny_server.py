"""A real HTTP server on the test's own loop, with the least of the protocol, that knows its open connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

WAIT_SEC = 10.0

_HEALTH = {"process_id": "p", "lifecycle": {"accepting_rollouts": True, "active_rollouts": 0}}


class TinyServer:
    """Admits everything; a poll of a rollout whose id starts with `park` has no answer until `release` is called."""

    def __init__(self) -> None:
        self.url = ""
        self.open_connections = 0
        self.connections_made = 0
        self.parked = 0
        self.close_after_answer = False
        self._released = asyncio.Event()
        self._changed = asyncio.Condition()

    def release(self) -> None:
        """Answer what is parked, and park nothing more."""
        self._released.set()

    async def wait_for(self, *, parked: int | None = None, open_connections: int | None = None) -> None:
        """Wait until as many polls are parked, or connections open, as named."""

        def reached() -> bool:
            return parked in (None, self.parked) and open_connections in (None, self.open_connections)

        async with asyncio.timeout(WAIT_SEC), self._changed:
            await self._changed.wait_for(reached)

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        await self._count(open_connections=1)
        try:
            while head := await _head(reader):
                method, path = head.split(b" ")[:2]
                body = json.loads(await reader.readexactly(_length(head)) or b"null")
                status, answer = await self._answer(method.decode(), path.decode(), body, reader)
                payload = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(payload), payload))
                await writer.drain()
                if self.close_after_answer:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, _ClientLeftError):
            pass  # a client that leaves is what these tests are about
        finally:
            writer.close()
            await self._count(open_connections=-1)

    async def _answer(self, method: str, path: str, body: Any, reader: asyncio.StreamReader) -> tuple[int, Any]:
        if method == "POST" and path == "/rollout":
            return 202, {
                "rollout_id": body["rollout_id"],
                "status": "queued",
                "polling_lease_token": "t",
                "result_wait_timeout_sec": 30,
                "polling_lease_timeout_sec": 120,
            }
        if path == "/rollout/cancel":
            return 200, {"dispositions": dict.fromkeys(body["ids"], "not_found")}
        if path == "/health":
            return 200, _HEALTH
        rollout_id = path.split("/")[2]
        if rollout_id.startswith("park"):
            await self._park(reader)
        return 200, {"rollout_id": rollout_id, "status": "success"}

    async def _park(self, reader: asyncio.StreamReader) -> None:
        """Wait for `release`, or for the client to leave, as a server's long poll does."""
        await self._count(parked=1)
        released = asyncio.ensure_future(self._released.wait())
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({released, left}, return_when=asyncio.FIRST_COMPLETED)
            if not released.done():
                raise _ClientLeftError
        finally:
            for waiting in (released, left):
                waiting.cancel()
            await asyncio.gather(released, left, return_exceptions=True)
            await self._count(parked=-1)

    async def _count(self, *, open_connections: int = 0, parked: int = 0) -> None:
        async with self._changed:
            self.open_connections += open_connections
            self.parked += parked
            self._changed.notify_all()


class _ClientLeftError(Exception):
    """The connection was closed while its poll was parked."""


async def _head(reader: asyncio.StreamReader) -> bytes:
    """A request's head, or nothing when the client closed the connection between requests."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


@asynccontextmanager
async def tiny_server() -> AsyncIterator[TinyServer]:
    """A running server on a free port of this machine."""
    server = TinyServer()
    listening = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0, backlog=1024)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        server.release()
        listening.close()
        await server.wait_for(open_connections=0)
