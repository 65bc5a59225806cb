"""How connections out of a sandbox are carried on: so many at a time, and whatever becomes of them."""

import asyncio
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

from rollbook.tasks.runtimes.forwarding import MOST_CONNECTIONS, Forwards, most_connections
from tests.support.processes import until
from tests.support.runtimes import open_files

WAIT_SEC = 20

type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Target:
    """A server of this machine that sends back what it gets, and counts its connections."""

    def __init__(self) -> None:
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # a client that was cut off
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def forwarding(serve: Serve, *, most: int) -> AsyncIterator[int]:
    """The port at which connections are taken that lead to the server."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    forwards = Forwards(most)
    forwards.serve(port, listener, server.sockets[0].getsockname())
    try:
        yield port
    finally:
        await forwards.stop()
        await forwards.stop()
        server.close()
        await server.wait_closed()


async def said(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    return await reader.readexactly(len(data))


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's body on either loop, and not for ever: runners have the second."""
    runs: Callable[[Coroutine[Any, Any, None]], None] = request.param
    return lambda body: runs(asyncio.wait_for(body, WAIT_SEC))


def test_further_connections_wait_until_one_has_ended(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def body() -> None:
        target = Target()
        async with forwarding(target.serve, most=2) as port:
            first, second, third, fourth = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            waiting = [asyncio.create_task(said(streams, b"at last")) for streams in (third, fourth)]
            for number in range(20):
                assert await said(first, b"%d" % number) == b"%d" % number
                assert await said(second, b"%d" % number) == b"%d" % number
            assert target.open == 2
            assert not any(task.done() for task in waiting)
            first[1].close()
            assert await waiting[0] == b"at last"
            assert target.open <= 2
            second[1].close()
            assert await waiting[1] == b"at last"
            third[1].close()
            fourth[1].close()
            await until(lambda: target.open == 0, what="the end of all")

    run(asyncio.sleep(0))  # what a loop's library opens once and for all
    before = open_files()
    run(body())
    assert open_files() == before


@contextmanager
def no_file_may_be_opened() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connection_that_comes_while_no_file_can_be_opened_is_taken_later(
    run: Callable[[Coroutine[Any, Any, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        target = Target()
        async with forwarding(target.serve, most=8) as port:
            first = await asyncio.open_connection("127.0.0.1", port)
            assert await said(first, b"before") == b"before"
            with socket.socket() as second:
                second.setblocking(False)
                with no_file_may_be_opened():
                    await asyncio.get_running_loop().sock_connect(second, ("127.0.0.1", port))
                    second.send(b"later")
                    assert await said(first, b"meanwhile") == b"meanwhile"
                assert await asyncio.get_running_loop().sock_recv(second, 5) == b"later"
            first[1].close()

    run(body())
    assert caplog.records == []


def reset(sock: socket.socket) -> None:
    """Make its end be a reset, as that of a program which is killed before it has read its answers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_connection_that_is_reset_ends_on_the_other_side_and_leaves_no_error(
    run: Callable[[Coroutine[Any, Any, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    ended = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        try:
            while await reader.read(1):
                writer.write(b"an answer")
        except ConnectionError:
            pass
        ended += 1
        writer.close()

    async def body() -> None:
        async with forwarding(serve, most=32) as port:
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.send(b"asked")
                    reset(client)
            await until(lambda: ended == 20, what="the end of all")

    run(body())
    assert caplog.records == []


def test_reset_by_the_target_reaches_the_program(
    run: Callable[[Coroutine[Any, Any, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reset(writer.get_extra_info("socket"))
        writer.transport.abort()

    async def send_on(client: socket.socket) -> None:
        while True:
            await asyncio.get_running_loop().sock_sendall(client, b"x" * 65_536)

    async def cut_off(port: int) -> None:
        with socket.socket() as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            with pytest.raises(ConnectionError):
                await send_on(client)

    async def body() -> None:
        async with forwarding(serve, most=32) as port:
            await asyncio.gather(*(cut_off(port) for _ in range(20)))

    run(body())
    assert caplog.records == []


@pytest.mark.parametrize(("files", "connections"), [(1_024, 16), (100, 16), (8_192, 128), (1_048_576, 256)])
def test_share_of_a_sandbox_goes_by_how_many_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, 2**20))
    assert most_connections() == connections <= MOST_CONNECTIONS
