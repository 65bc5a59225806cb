"""The runtime that is a folder of this machine: what it passes on, and what it does not claim to keep."""

import asyncio
from pathlib import Path

import httpx
import pytest

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.runtimes import SubprocessRuntime, UnsafePathError, UnsupportedNetworkError
from rollbook.tasks.runtimes.lifetime import OwnedRuntime


@pytest.fixture
def kind() -> type[OwnedRuntime]:
    return SubprocessRuntime


async def test_programs_are_found_as_this_process_finds_them(
    runtime: OwnedRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tool-of-the-host"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (await runtime.run(["tool-of-the-host"])).stdout == b"found\n"


@pytest.mark.parametrize("path", ["../home/x", "/etc/passwd", "a/../../x", "..", ".", "/"])
async def test_files_outside_of_the_working_folder_are_not_ours_to_touch(runtime: OwnedRuntime, path: str) -> None:
    with pytest.raises(UnsafePathError):
        await runtime.read(path)
    with pytest.raises(UnsafePathError):
        await runtime.write(path, b"")


@pytest.mark.parametrize("policy", [NetworkPolicy(), NetworkPolicy(allow=("*",))])
async def test_policy_that_asks_for_nothing_is_taken(runtime: OwnedRuntime, policy: NetworkPolicy) -> None:
    await runtime.allow(policy, keep=[("127.0.0.1", 80)])


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(allow=("example.com",)),
        NetworkPolicy(allow=("*",), deny=("example.com",)),
        NetworkPolicy(deny=("*",)),
    ],
)
async def test_policy_that_it_cannot_keep_is_refused(runtime: OwnedRuntime, policy: NetworkPolicy) -> None:
    with pytest.raises(UnsupportedNetworkError, match="BubblewrapRuntime"):
        await runtime.allow(policy)


async def test_port_of_the_host_is_found_where_it_is(runtime: OwnedRuntime) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, httpx.AsyncClient() as client:
        url = runtime.url_of(server.sockets[0].getsockname()[1])
        assert (await client.get(f"{url}/x")).text == "hi"


async def test_marked_variable_cannot_be_replaced(runtime: OwnedRuntime) -> None:
    done = await runtime.run("echo $ROLLBOOK_RUNTIME_HOME", env={"ROLLBOOK_RUNTIME_HOME": "/elsewhere"})
    assert done.stdout.decode().strip() == str(runtime.folder.parent)
