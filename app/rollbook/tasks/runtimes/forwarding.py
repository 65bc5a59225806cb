"""Routes of the framework into a sandbox without network: a port of its loopback, served by this process."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .errors import RuntimeFailedError
from .processes import call

__all__ = ["Forward", "listen_inside"]

_LISTENING = Path(__file__).with_name("listening.py")
_CHUNK_BYTES = 64 * 1024


async def listen_inside(first: int, *, user: int | None, ports: Sequence[int]) -> list[socket.socket]:
    """Listening sockets on 127.0.0.1 of the sandbox whose first process is `first`, in the order of the ports.

    Raises:
        RuntimeFailedError: a port is taken inside, or the sandbox is gone.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # Isolated (-I) and without site packages (-S): it starts as this user, and needs nothing but the library.
        command = [sys.executable, "-I", "-S", str(_LISTENING), str(first), str(-1 if user is None else user)]
        code, said = await call(
            [*command, str(theirs.fileno()), *map(str, ports)], env={}, descriptors=[theirs.fileno()]
        )
        if code != 0:
            reason = said.rpartition("\n")[2]
            raise RuntimeFailedError(f"ports {', '.join(map(str, ports))} could not be opened in the sandbox: {reason}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, len(ports))
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


class Forward:
    """Carries each connection to a listening socket on to an address of this host."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self._listener = listener
        self.target = target
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serve the socket, which is this object's from now on."""
        # In two steps, the first of which does not wait: from there on `stop` knows what to close.
        self._server = await asyncio.start_server(
            self._accept, sock=self._listener, limit=_CHUNK_BYTES, start_serving=False
        )
        await self._server.start_serving()

    async def stop(self) -> None:
        """Take no more connections and end those there are. May be called again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer), name="runtime-forward")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target, limit=_CHUNK_BYTES)
        except OSError:  # nobody listens: the program finds its connection cut, as it would without us
            writer.transport.abort()
            return
        except BaseException:
            writer.transport.abort()
            raise
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pump(reader, there_writer))
                ways.create_task(_pump(there_reader, writer))
        finally:
            # Both directions have ended well, or what is left of the connection is worth nothing.
            writer.close()
            there_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_CHUNK_BYTES):
            target.write(chunk)
            await target.drain()
        with suppress(OSError):  # the other side was quicker to close
            target.write_eof()
    except ConnectionError:
        # A broken connection is passed on as broken, to both sides.
        target.transport.abort()
