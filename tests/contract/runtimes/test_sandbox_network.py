"""A sandbox's network: none but the kept routes, or this machine's. Collected where sandboxes can be made."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeFailedError, UnsupportedNetworkError
from rollbook.tasks.runtimes.forwarding import listen_inside
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.processes import until
from tests.support.runtimes import NOBODY, first_process, open_files, running, unique_sleep, until_running

ALL = NetworkPolicy(allow=("*",))
NONE = NetworkPolicy()


@pytest.fixture
def kind() -> type[OwnedRuntime]:
    return BubblewrapRuntime


class Echo:
    """A server of this machine's loopback that sends back what it gets."""

    def __init__(self) -> None:
        self.port = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # how a program that was killed ends its connection
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.answer, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    try:
        yield echo
    finally:
        server.close()
        for writer in list(echo.open):
            writer.transport.abort()
        await server.wait_closed()


# By the shell itself: a system need not have a client, nor Python.
ASK = "exec 3<>/dev/tcp/127.0.0.1/$0 || exit 9; cat <&0 >&3 & head -c $1 <&3"


async def ask(runtime: OwnedRuntime, port: int, data: bytes = b"hello") -> bytes | None:
    """What comes back to a program inside; None where it cannot connect."""
    done = await runtime.run(["bash", "-c", ASK, str(port), str(len(data))], stdin=data, timeout_sec=60)
    assert done.exit_code in (0, 9), done
    return done.stdout if done.exit_code == 0 else None


async def interfaces(runtime: OwnedRuntime) -> set[str]:
    lines = (await runtime.run("cat /proc/self/net/dev")).stdout.decode().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


async def test_nothing_is_reached_unless_allowed(runtime: OwnedRuntime) -> None:
    async with echoing() as echo:
        assert await ask(runtime, echo.port) is None
        await runtime.allow(NONE)
        assert await ask(runtime, echo.port) is None
    assert await interfaces(runtime) == {"lo"}


async def test_kept_route_is_reached_without_network(runtime: OwnedRuntime) -> None:
    async with echoing() as echo, echoing() as other:
        await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        assert runtime.url_of(echo.port) == f"http://127.0.0.1:{echo.port}"
        assert await ask(runtime, echo.port) == b"hello"
        assert await ask(runtime, other.port) is None
        assert await interfaces(runtime) == {"lo"}
        await runtime.allow(NONE, keep=[("127.0.0.1", other.port), ("127.0.0.1", echo.port)])
        assert (await ask(runtime, other.port), await ask(runtime, echo.port)) == (b"hello", b"hello")


async def test_much_goes_both_ways_at_once(runtime: OwnedRuntime) -> None:
    data = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(50_000))
    runtime_limited = BubblewrapRuntime(output_limit_bytes=len(data))
    await runtime_limited.start()
    try:
        async with echoing() as echo:
            await runtime_limited.allow(NONE, keep=[("127.0.0.1", echo.port)])
            answers = await asyncio.gather(*(ask(runtime_limited, echo.port, data) for _ in range(3)))
    finally:
        await runtime_limited.stop()
    assert [answer == data for answer in answers] == [True] * 3


async def test_kept_route_that_nobody_serves_is_cut(runtime: OwnedRuntime) -> None:
    async with echoing() as echo:
        await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        port = echo.port
    done = await runtime.run(["bash", "-c", ASK, str(port), "5"], stdin=b"hello", timeout_sec=60)
    assert (done.stdout, done.timed_out) == (b"", False)


async def test_connection_of_a_killed_program_ends_outside_too(runtime: OwnedRuntime) -> None:
    async with echoing() as echo:
        await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        command = asyncio.create_task(
            runtime.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{echo.port}; read line <&3"])
        )
        await until(lambda: echo.open, what="a connection")
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        await until(lambda: not echo.open, what="its end")


async def test_stop_ends_connections_and_closes_every_socket(parent: Path) -> None:
    async with echoing() as echo:
        before = open_files()
        runtime = BubblewrapRuntime(parent=parent)
        await runtime.start()
        await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        await runtime.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{echo.port}; setsid -f sleep 1000 <&3"])
        await until(lambda: echo.open, what="a connection")
        await runtime.stop()
        await until(lambda: not echo.open, what="its end")
        await until(lambda: open_files() == before, what="all sockets closed")


async def test_calls_of_allow_that_overlap_take_turns_and_their_routes_add_up(runtime: OwnedRuntime) -> None:
    async with echoing() as echo, echoing() as other:
        keeps = [[("127.0.0.1", port)] for port in (echo.port, echo.port, other.port)]
        await asyncio.gather(*(runtime.allow(NONE, keep=keep) for keep in keeps))
        assert [await ask(runtime, port) for port in (echo.port, other.port)] == [b"hello", b"hello"]


async def test_route_whose_port_is_taken_inside_is_an_error(runtime: OwnedRuntime, parent: Path) -> None:
    async with echoing() as echo:
        user = NOBODY if os.geteuid() == 0 else None
        (taken,) = await listen_inside(first_process(parent), user=user, ports=[echo.port])
        with taken, pytest.raises(RuntimeFailedError, match=f"ports {echo.port} could not be opened.*in use"):
            await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        await runtime.allow(NONE, keep=[("127.0.0.1", echo.port)])
        assert await ask(runtime, echo.port) == b"hello"


async def test_all_is_this_machines_network(runtime: OwnedRuntime) -> None:
    async with echoing() as echo:
        await runtime.allow(ALL, keep=[("127.0.0.1", echo.port)])
        assert await ask(runtime, echo.port) == b"hello"
        outside = {line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]}
        assert await interfaces(runtime) == outside
        assert (await runtime.run("cat /etc/resolv.conf")).stdout == Path("/etc/resolv.conf").read_bytes()


async def test_network_of_the_set_up_is_taken_away_from_what_it_left_behind(parent: Path) -> None:
    lasting, isolated = unique_sleep(), unique_sleep()
    runtime = BubblewrapRuntime(network=ALL, parent=parent)
    await runtime.start()
    try:
        async with echoing() as echo:
            assert await ask(runtime, echo.port) == b"hello"
            await runtime.run(f"setsid -f {lasting}")
            await until_running(lasting)
            await runtime.allow(NONE)
            assert running(lasting) == []
            assert await ask(runtime, echo.port) is None
            assert (await runtime.run("cat /etc/resolv.conf")).stdout == b""
            await runtime.run(f"setsid -f {isolated}")
            await until_running(isolated)
            await runtime.allow(NONE)
            assert len(running(isolated)) == 1
    finally:
        await runtime.stop()


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(allow=("example.com",)),
        NetworkPolicy(allow=("*.example.com", "*"), deny=("example.com",)),
    ],
)
async def test_policy_that_names_hosts_is_refused_and_changes_nothing(
    runtime: OwnedRuntime, policy: NetworkPolicy
) -> None:
    async with echoing() as echo:
        with pytest.raises(UnsupportedNetworkError, match="all of the network or none"):
            await runtime.allow(policy, keep=[("127.0.0.1", echo.port)])
        assert await ask(runtime, echo.port) is None
    with pytest.raises(UnsupportedNetworkError):
        BubblewrapRuntime(network=policy)
