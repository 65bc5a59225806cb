"""Routes of the framework into a sandbox without network: a port of its loopback, served by this process."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from .errors import RuntimeFailedError
from .processes import call

__all__ = ["Forwards", "listen_inside", "most_connections"]

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
_LEAST_CONNECTIONS = 16
_PAUSE_SEC = 0.1
"""How long no connection is taken after one could not be: this process may have no descriptor left."""
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


def most_connections() -> int:
    """How many connections one sandbox has at a time, at most: each takes three or four descriptors of this process,
    so that a program with very many takes no other sandbox its own."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(_LEAST_CONNECTIONS, files // 64))


class Forwards:
    """Carries connections to a sandbox's listening sockets on to addresses of this host.

    So many at a time; further ones wait in the sandbox's own queue, where they cost this process nothing.
    """

    def __init__(self, most: int) -> None:
        self.targets: dict[int, tuple[str, int]] = {}
        """Where each served port leads; it may be changed."""
        self._most = most
        self._listeners: dict[int, socket.socket] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    def serve(self, port: int, listener: socket.socket, target: tuple[str, int]) -> None:
        """Serve the socket, which is this object's from now on."""
        listener.setblocking(False)
        self.targets[port] = target
        self._listeners[port] = listener
        if self._takes_more:
            asyncio.get_running_loop().add_reader(listener, self._accept, port, listener)

    async def stop(self) -> None:
        """Take no more connections and end those there are. May be called again."""
        self._pause()
        while self._listeners:
            self._listeners.popitem()[1].close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    @property
    def _takes_more(self) -> bool:
        return len(self._connections) < self._most and self._later is None

    def _go_on(self) -> None:
        self._later = None
        if self._takes_more:
            for port, listener in self._listeners.items():
                asyncio.get_running_loop().add_reader(listener, self._accept, port, listener)

    def _pause(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for listener in self._listeners.values():
            asyncio.get_running_loop().remove_reader(listener)

    def _accept(self, port: int, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the program was quicker to hang up
            return
        except OSError:
            self._pause()
            self._later = asyncio.get_running_loop().call_later(_PAUSE_SEC, self._go_on)
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._carry(connection, port), name="runtime-forward")
        self._connections.add(task)
        task.add_done_callback(partial(self._end, connection))
        if not self._takes_more:
            self._pause()

    def _end(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if task.cancelled():
            connection.close()  # it may have been cancelled before it had begun
        elif error := task.exception():
            log.error("A connection of a sandbox was not carried on", exc_info=error)
        if self._later is None:
            self._go_on()

    async def _carry(self, connection: socket.socket, port: int) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_CHUNK_BYTES)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.targets[port], limit=_CHUNK_BYTES)
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
        except BaseException:  # what is left of the connection is worth nothing
            writer.transport.abort()
            there_writer.transport.abort()
            raise
        writer.close()
        there_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_CHUNK_BYTES):
            target.write(chunk)
            await target.drain()
        with suppress(OSError):  # the other side was quicker to close
            target.write_eof()
    except (OSError, RuntimeError):
        # A broken connection is passed on as broken, to both sides. The latter is uvloop's for one that is closed.
        target.transport.abort()
