"""A load balancer before several API processes: it lets clients reach those that answer, as any deployment's does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx

LOOK_SEC = 0.2
ANSWER_LIMIT_SEC = 1.0
CHUNK_BYTES = 1 << 16


class Balancer:
    """New connections go to the APIs in turn; those to an API that stops answering are cut."""

    def __init__(self, ports: list[int]) -> None:
        self.url = ""
        self._answering: dict[int, bool] = dict.fromkeys(ports, False)
        self._connections: dict[asyncio.Task[None], int] = {}
        self._turn = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            port = self._next()
            if port is None:
                return
            self._connections[task] = port
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                pumps = [
                    asyncio.ensure_future(_pump(reader, to_writer)),
                    asyncio.ensure_future(_pump(to_reader, writer)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                to_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # its API is gone, which its client sees
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def close(self) -> None:
        """Cut every connection."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports tell of it in the next turn of the loop

    def _next(self) -> int | None:
        answering = [port for port, answers in self._answering.items() if answers]
        self._turn += 1
        return answering[self._turn % len(answering)] if answering else None

    async def look(self) -> None:
        """Look after all APIs, for ever."""
        await asyncio.gather(*(self._look_after(port) for port in self._answering))

    async def _look_after(self, port: int) -> None:
        async with httpx.AsyncClient(timeout=ANSWER_LIMIT_SEC, verify=False) as http:
            while True:
                try:
                    # Any answer will do, so one that needs no database: that it is away concerns all APIs alike.
                    await http.get(f"http://127.0.0.1:{port}/alive")
                    self._answering[port] = True
                except httpx.TransportError:
                    self._answering[port] = False
                    for task in [each for each, used in self._connections.items() if used == port]:
                        task.cancel()
                await asyncio.sleep(LOOK_SEC)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


@contextlib.asynccontextmanager
async def balancing(ports: list[int]) -> AsyncIterator[Balancer]:
    """A balancer in this loop."""
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.accept, "127.0.0.1", 0)
    balancer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    looking = asyncio.create_task(balancer.look())
    try:
        yield balancer
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        server.close()
        await balancer.close()
