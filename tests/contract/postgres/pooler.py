"""A transaction-mode pooler: a client has a server's session for as long as its transaction lasts.

Startup and authentication pass through to a new session, which joins the pool afterwards while that is not full. With
``keeps_statements`` it knows what each client has prepared and prepares it in whatever session the client gets, under
names of its own, as PgBouncer does from 1.21 on; without, names pass through as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from tests.contract.postgres.wire import SSL_REQUEST, Message, first_message, next_message

type Lending = Literal["newest", "oldest", "own"]
"""Which idle session a client gets: the one given back last, the one given back first, or always its own one."""

LIMIT_BYTES = 1 << 24
GONE = (asyncio.IncompleteReadError, OSError)
READY, IDLE = b"Z", b"I"


class Session:
    """One of the server's sessions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.prepared: dict[tuple[int, bytes], bytes] = {}
        """Names in this session by client and name there."""
        self.own_parses: deque[bool] = deque()
        """For each statement that is being prepared: whether the pooler does that by itself."""


class Client:
    """One client's connection, and the session that it has at the moment."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.session: Session | None = None
        self.own: Session | None = None
        self.answering: asyncio.Task[None] | None = None
        self.statements: dict[bytes, bytes] = {}
        """What it has prepared: the rest of each message by its name."""
        self.unanswered = 0
        self.unsynced = False


class Pooler:
    """Stands before one server's database."""

    def __init__(self, url: sa.URL, *, size: int, keeps_statements: bool, lending: Lending) -> None:
        self.url = ""
        self.most_sessions = 0
        self._target = url
        self._size = size
        self._keeps_statements = keeps_statements
        self._lending = lending
        self._idle: deque[Session] = deque()
        self._spare: list[Session] = []
        self._count = 0
        self._freed = asyncio.Condition()
        self._numbers = count(1)
        self._names = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        client = Client(next(self._numbers), reader, writer)
        with contextlib.suppress(*GONE, asyncio.CancelledError):
            try:
                if await self._greet(client):
                    await self._serve(client)
            finally:
                writer.transport.abort()
                await self._leave(client)
                self._tasks.discard(task)

    async def _greet(self, client: Client) -> bool:
        first = await first_message(client.reader)
        if first.code == SSL_REQUEST:
            client.writer.write(b"N")
            first = await first_message(client.reader)
        if first.code >> 16 != 3:
            return False  # a request to cancel: nothing here runs for long
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port, limit=LIMIT_BYTES)
        self._writers.add(writer)
        session = Session(reader, writer)
        writer.write(first.raw)
        asking = asyncio.create_task(self._pass_on(client.reader, writer))
        try:
            while True:
                message = await next_message(reader, from_client=False)
                client.writer.write(message.raw)
                if message.kind == READY:
                    break
        except asyncio.IncompleteReadError:
            writer.close()
            return False
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if self._lending == "own":
            client.own = session
        elif self._count < self._size:
            self._count += 1
            self.most_sessions = max(self.most_sessions, self._count)
            await self._give_back(session)
        else:
            self._spare.append(session)
        return True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            # Passwords only; the client says no more until it is let in.
            writer.write((await next_message(reader, from_client=True)).raw)

    async def _serve(self, client: Client) -> None:
        while True:
            message = await next_message(client.reader, from_client=True)
            if message.kind == b"X":
                return
            if client.session is None:
                client.session = client.own or await self._take()
                if client.reader.at_eof() or client.reader.exception() is not None:
                    return  # it went away while it waited
                client.answering = asyncio.create_task(self._answer(client, client.session))
                self._tasks.add(client.answering)
                client.answering.add_done_callback(self._tasks.discard)
            client.unsynced = message.kind not in (b"Q", b"S")
            client.unanswered += not client.unsynced
            session = client.session
            for each in self._renamed(client, session, message) if self._keeps_statements else [message]:
                session.writer.write(each.raw)
            await session.writer.drain()

    async def _answer(self, client: Client, session: Session) -> None:
        """Pass the server's answers on until the transaction is over."""
        try:
            while True:
                message = await next_message(session.reader, from_client=False)
                if message.kind == b"1" and session.own_parses and session.own_parses.popleft():
                    continue
                if message.kind == READY:
                    client.unanswered -= 1
                    session.own_parses.clear()
                    if message.body == IDLE and not client.unanswered and not client.unsynced:
                        client.session = client.answering = None
                        await self._give_back(session)
                        client.writer.write(message.raw)
                        return
                client.writer.write(message.raw)
        except GONE:
            client.writer.transport.abort()

    def _renamed(self, client: Client, session: Session, message: Message) -> list[Message]:
        if message.kind == b"P":
            name, rest = message.body.split(b"\0", 1)
            if name:
                client.statements[name] = rest
            return [self._parse(client, session, name, own=False)] if name else [self._unnamed(session, message)]
        if message.kind == b"B":
            portal, name, rest = message.body.split(b"\0", 2)
            known, parses = self._known(client, session, name)
            return [*parses, Message(b"B", b"\0".join((portal, known, rest)), True)]
        if message.kind in (b"D", b"C") and message.body[:1] == b"S":
            name = message.body[1:-1]
            if message.kind == b"C":
                client.statements.pop(name, None)
                known = session.prepared.pop((client.number, name), b"none")
                return [Message(b"C", b"S" + known + b"\0", True)]
            known, parses = self._known(client, session, name)
            return [*parses, Message(b"D", b"S" + known + b"\0", True)]
        return [message]

    def _unnamed(self, session: Session, message: Message) -> Message:
        session.own_parses.append(False)
        return message

    def _known(self, client: Client, session: Session, name: bytes) -> tuple[bytes, list[Message]]:
        """The name that a client's statement has in a session, and how it gets there."""
        if not name or name not in client.statements:
            return name, []
        known = session.prepared.get((client.number, name))
        parses = [] if known is not None else [self._parse(client, session, name, own=True)]
        return session.prepared[client.number, name], parses

    def _parse(self, client: Client, session: Session, name: bytes, *, own: bool) -> Message:
        known = f"POOLER_{next(self._names)}".encode()
        session.prepared[client.number, name] = known
        session.own_parses.append(own)
        return Message(b"P", known + b"\0" + client.statements[name], True)

    async def _take(self) -> Session:
        async with self._freed:
            await self._freed.wait_for(lambda: self._idle)
            return self._idle.pop() if self._lending == "newest" else self._idle.popleft()

    async def _give_back(self, session: Session) -> None:
        if self._lending == "own":
            return
        async with self._freed:
            self._idle.append(session)
            self._freed.notify()

    async def _leave(self, client: Client) -> None:
        """A client that went away within a transaction takes its session along."""
        if client.session is not None and client.answering is None:
            await self._give_back(client.session)
            return
        for session in (client.session, client.own):
            if session is not None:
                session.writer.transport.abort()
        if client.session is not None and client.own is None:
            self._count -= 1
            if self._spare:
                self._count += 1
                await self._give_back(self._spare.pop())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports tell of it in the next turn of the loop


@contextlib.asynccontextmanager
async def pooler_before(
    url: str, *, size: int = 3, keeps_statements: bool = True, lending: Lending = "newest"
) -> AsyncIterator[Pooler]:
    """A pooler in this loop before the database of a TCP URL."""
    target = make_url(url)
    pooler = Pooler(target, size=size, keeps_statements=keeps_statements, lending=lending)
    server = await asyncio.start_server(pooler.accept, "127.0.0.1", 0, limit=LIMIT_BYTES)
    port = server.sockets[0].getsockname()[1]
    pooler.url = target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    try:
        yield pooler
    finally:
        server.close()
        await pooler.close()
