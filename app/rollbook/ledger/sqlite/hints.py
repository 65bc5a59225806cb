"""Hints between the processes of an SQLite ledger: datagrams where they have a socket, else a look at the file."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from .reads import SqliteReads

FILE_POLL_SEC = 0.010


class SocketHints:
    """Datagrams over a socket that `serve` gives its children: nobody looks while nobody says anything."""

    def __init__(self, hint_socket: socket.socket) -> None:
        self._socket = hint_socket
        self._hinted: Callable[[], None] | None = None

    pause_sec = float("inf")

    async def start(self, hinted: Callable[[], None]) -> None:
        self._hinted = hinted
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._drain)

    def _drain(self) -> None:
        assert self._hinted is not None
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(4096):
                pass
        self._hinted()

    def tell(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # a full or closed socket: the other one looks anyway
            self._socket.send(b"\0")

    async def changed(self) -> bool:
        return False

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())


class FileHints:
    """SQLite's own count of commits by others, asked often: some microseconds each time."""

    pause_sec = FILE_POLL_SEC

    def __init__(self, reads: SqliteReads) -> None:
        self._reads = reads
        self._version: int | None = None

    async def start(self, hinted: Callable[[], None]) -> None:
        return None

    def tell(self) -> None:
        return None

    async def changed(self) -> bool:
        version: int = self._reads.query_now("PRAGMA data_version")[0][0]
        changed = version != self._version
        self._version = version
        return changed

    async def close(self) -> None:
        return None
