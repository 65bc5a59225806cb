"""Runtimes on the event loop that runners have."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import open_files, running, unique_sleep, until_none_runs, until_running


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_runtime_works_on_either_loop(
    run: Callable[[Coroutine[Any, Any, None]], None], kind: type[OwnedRuntime], parent: Path
) -> None:
    sleep = unique_sleep()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    async def use() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        runtime = kind(parent=parent)
        await runtime.start()
        await runtime.allow(NetworkPolicy(), keep=[("127.0.0.1", port)])
        asked = await runtime.run(
            ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat >&3; cat <&3"], stdin=b"hello"
        )
        assert asked.stdout == b"hello"
        command = asyncio.create_task(runtime.run(f"{sleep}; true"))
        await until_running(sleep)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        await until_none_runs(sleep)
        assert (await runtime.run(f"setsid -f {sleep}; echo left; exit 3")).exit_code == 3
        await runtime.stop()
        server.close()

    run(asyncio.sleep(0))  # what a loop's library opens once and for all
    before = open_files()
    run(use())
    assert running(sleep) == []
    assert running(str(parent)) == []
    assert list(parent.iterdir()) == []
    assert open_files() == before
