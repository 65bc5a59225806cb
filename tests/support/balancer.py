"""A load balancer as deployments have one before their APIs, as small as it can be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollbook.ledger.postgres.blocking import loop_thread

HOST = "127.0.0.1"
LIMIT_SEC = 30.0
PAUSE_SEC = 0.02
CHUNK_BYTES = 65_536


class Balancer:
    """Hands every connection to the next of some ports, and to another one where nobody listens."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen on the port that it returns."""
        self._server = await asyncio.start_server(self._accept, HOST, 0, backlog=1_000)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._join(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError):  # both ends learn it by the end of their connections
                behind_reader, behind_writer = await self._connect()
                try:
                    await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))
                finally:
                    behind_writer.close()
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(LIMIT_SEC):
            while True:
                for _ in self._ports:
                    port = self._ports.pop(0)
                    self._ports.append(port)
                    with contextlib.suppress(ConnectionError):
                        return await asyncio.open_connection(HOST, port)
                await asyncio.sleep(PAUSE_SEC)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@contextmanager
def balanced(ports: Sequence[int]) -> Iterator[str]:
    """The URL that leads to the APIs on these ports in turn, for a block."""
    with loop_thread() as thread:
        balancer = Balancer(ports)
        port = thread.run(balancer.start())
        try:
            yield f"http://{HOST}:{port}"
        finally:
            thread.run(balancer.close())
