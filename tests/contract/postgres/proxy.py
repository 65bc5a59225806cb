"""A proxy that sees every message between clients and PostgreSQL, and may cut, hold or swallow at each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from tests.contract.postgres.wire import CANCEL_REQUEST, SSL_REQUEST, Message, first_message, next_message

LIMIT_BYTES = 1 << 24
GONE = (asyncio.IncompleteReadError, OSError)


class Link:
    """One client's connection and the server's beside it."""

    def __init__(self, number: int, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.number = number
        """Counted from 1 in the order in which clients came."""
        self._client = client
        self._server = server

    def cut(self) -> None:
        """Break it, both sides, without a word."""
        self.cut_client()
        self._server.transport.abort()

    def cut_client(self) -> None:
        """Break the client's side; what is passed on still reaches the server."""
        self._client.transport.abort()

    def send_half(self, message: Message) -> None:
        """Pass a part of a message on."""
        raw = message.raw
        (self._server if message.from_client else self._client).write(raw[: len(raw) // 2])

    async def send(self, message: Message) -> None:
        writer = self._server if message.from_client else self._client
        writer.write(message.raw)
        if not writer.is_closing():
            await writer.drain()


Judge = Callable[[Link, Message], Awaitable[bool]]
"""Sees a message, does what it likes, and says whether the message is passed on."""


async def pass_all(_link: Link, _message: Message) -> bool:
    return True


class Proxy:
    """Stands before one server; ``judge`` may be replaced at any time."""

    def __init__(self, url: sa.URL) -> None:
        self.judge: Judge = pass_all
        self.url = ""
        """Where clients connect."""
        self.links: set[Link] = set()
        self.accepts = True
        """Whether new clients are let in; else they are cut off at once."""
        self._target = url
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut_all(self) -> None:
        for link in list(self.links):
            link.cut()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        except (*GONE, asyncio.CancelledError):
            pass  # one of both ends is gone, or the test is over
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await first_message(reader)
        if first.code == SSL_REQUEST:
            writer.write(b"N")
            first = await first_message(reader)
        if not self.accepts:
            return
        to_reader, to_writer = await asyncio.open_connection(self._target.host, self._target.port, limit=LIMIT_BYTES)
        self._writers.add(to_writer)
        self._count += 1
        link = Link(self._count, writer, to_writer)
        if first.code != CANCEL_REQUEST:
            self.links.add(link)
        try:
            if first.code == CANCEL_REQUEST or await self.judge(link, first):
                await link.send(first)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, to_reader, from_client=False))
                await self._pump(link, reader, from_client=True)
        except* GONE:
            pass
        finally:
            self.links.discard(link)
            # Not aborted: what was passed on still arrives.
            to_writer.close()

    async def _pump(self, link: Link, reader: asyncio.StreamReader, *, from_client: bool) -> None:
        while True:
            message = await next_message(reader, from_client=from_client)
            if await self.judge(link, message):
                await link.send(message)

    async def close(self) -> None:
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports tell of it in the next turn of the loop


@contextlib.asynccontextmanager
async def proxy_before(url: str) -> AsyncIterator[Proxy]:
    """A proxy in this loop before the server of a TCP URL."""
    target = make_url(url)
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, limit=LIMIT_BYTES)
    port = server.sockets[0].getsockname()[1]
    proxy.url = target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
