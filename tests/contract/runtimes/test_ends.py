"""Start and stop of a runtime: what is left after each way to end is nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rollbook.backends.limiter import Slots
from rollbook.tasks.data import NetworkPolicy
from rollbook.tasks.errors import RuntimeStoppedError
from rollbook.tasks.runtimes import RuntimeFailedError, RuntimeUnavailableError
from rollbook.tasks.runtimes.homes import Home, sweep
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.cancelling import cancelled_at
from tests.support.processes import until
from tests.support.runtimes import RuntimeMaker, open_files, running, unique_sleep, until_none_runs, until_running


def nothing_is_left(parent: Path) -> bool:
    return list(parent.iterdir()) == [] and running(str(parent)) == []


async def test_stop_ends_what_commands_left_behind(kind: RuntimeMaker, parent: Path) -> None:
    sleep = unique_sleep()
    runtime = kind(parent=parent)
    await runtime.start()
    await runtime.run(f"{sleep} & setsid {sleep} & setsid -f {sleep} >/dev/null 2>&1")
    await runtime.run(f"cd / && setsid -f sh -c '{sleep}; {sleep}'")
    # Without our mark in its environment, but not yet out of the folder.
    await runtime.run(f"setsid -f env -i {sleep}")
    await until_running(sleep, count=6)
    await runtime.stop()
    assert running(sleep) == []
    assert nothing_is_left(parent)


async def test_stop_ends_a_command_that_runs(kind: RuntimeMaker, parent: Path) -> None:
    sleep = unique_sleep()
    runtime = kind(parent=parent)
    await runtime.start()
    commands = [asyncio.create_task(runtime.run(f"{sleep}; true")) for _ in range(3)]
    await until_running(f" {sleep}", count=3)
    await runtime.stop()
    ends = await asyncio.gather(*commands, return_exceptions=True)
    assert [type(end) for end in ends] == [RuntimeStoppedError] * 3
    assert running(sleep) == []
    assert nothing_is_left(parent)


async def test_stopped_runtime_says_so_whatever_is_asked_of_it(kind: RuntimeMaker) -> None:
    runtime = kind()
    await runtime.start()
    await runtime.stop()
    assert runtime.stopped
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: runtime.run("true"),
        lambda: runtime.read("x"),
        lambda: runtime.write("x", b""),
        lambda: runtime.allow(NetworkPolicy()),
        runtime.start,
    ]
    for use in uses:
        with pytest.raises(RuntimeStoppedError):
            await use()


async def test_runtime_that_is_not_started_says_so(kind: RuntimeMaker) -> None:
    runtime = kind()
    with pytest.raises(RuntimeStoppedError, match="await start"):
        await runtime.run("true")
    with pytest.raises(RuntimeStoppedError, match="await start"):
        _ = runtime.folder


async def test_runtime_is_started_once(runtime: OwnedRuntime) -> None:
    with pytest.raises(RuntimeError, match="started once"):
        await runtime.start()
    assert (await runtime.run("echo on")).stdout == b"on\n"


async def test_stop_may_come_again_and_first(kind: RuntimeMaker, parent: Path) -> None:
    runtime = kind(parent=parent)
    await runtime.start()
    await asyncio.gather(runtime.stop(), runtime.stop())
    await runtime.stop()
    never_started = kind(parent=parent)
    await never_started.stop()
    with pytest.raises(RuntimeStoppedError):
        await never_started.start()
    assert nothing_is_left(parent)


async def test_start_that_is_cancelled_anywhere_leaves_nothing(kind: RuntimeMaker, parent: Path) -> None:
    await kind(parent=parent).stop()
    before = open_files()
    for number in range(1, 1_000):
        slots = Slots(1)
        runtime = kind(parent=parent, slots=slots)
        cancelled = await cancelled_at(number, runtime.start())
        if not cancelled:
            await runtime.stop()
        assert nothing_is_left(parent)
        assert runtime.stopped
        assert slots.snapshot()["running"] == 0
        assert open_files() == before
        if not cancelled:
            break
    else:
        pytest.fail("start has no end")
    assert number > 1


async def test_stop_that_is_cancelled_anywhere_goes_on(kind: RuntimeMaker, parent: Path) -> None:
    sleep = unique_sleep()
    for number in range(1, 1_000):
        runtime = kind(parent=parent)
        await runtime.start()
        await runtime.run(f"setsid -f {sleep}")
        cancelled = await cancelled_at(number, runtime.stop())
        await runtime.stop()
        assert running(sleep) == []
        assert nothing_is_left(parent)
        if not cancelled:
            break
    else:
        pytest.fail("stop has no end")
    assert number > 1


async def test_command_that_is_cancelled_anywhere_is_gone(runtime: OwnedRuntime) -> None:
    sleep = unique_sleep()
    before = open_files()
    for number in range(1, 1_000):
        cancelled = await cancelled_at(number, runtime.run(f"(exit 3) || {sleep}", timeout_sec=0.2))
        await until_none_runs(sleep)
        if not cancelled:
            break
    else:
        pytest.fail("run has no end")
    assert number > 1
    await until(lambda: open_files() == before, what="the end of what is read from those that were killed")


async def test_stop_during_start_ends_both(kind: RuntimeMaker, parent: Path) -> None:
    runtime = kind(parent=parent)
    starting = asyncio.create_task(runtime.start())
    await asyncio.sleep(0)  # lets it begin
    await runtime.stop()
    with pytest.raises(RuntimeStoppedError):
        await starting
    assert nothing_is_left(parent)


async def test_start_that_fails_leaves_nothing_and_frees_its_slot(kind: RuntimeMaker, parent: Path) -> None:
    parent.chmod(0o777)
    slots = Slots(1)
    runtime = kind(parent=parent, slots=slots)
    with pytest.raises(RuntimeUnavailableError, match="only this user can write to"):
        await runtime.start()
    assert runtime.stopped
    assert slots.snapshot()["running"] == 0
    assert nothing_is_left(parent)


async def test_slots_bound_how_many_are_up(kind: RuntimeMaker, parent: Path) -> None:
    slots = Slots(2)
    runtimes = [kind(parent=parent, slots=slots) for _ in range(3)]
    await asyncio.gather(*(runtime.start() for runtime in runtimes[:2]))
    third = asyncio.create_task(runtimes[2].start())
    await asyncio.sleep(0)  # lets it begin
    assert slots.snapshot() == {"max_concurrent": 2, "queued": 0, "running": 2} or slots.snapshot()["queued"] == 1
    assert not third.done()
    await runtimes[0].stop()
    await third
    await asyncio.gather(*(runtime.stop() for runtime in runtimes))
    assert slots.snapshot() == {"max_concurrent": 2, "queued": 0, "running": 0}


async def test_many_runtimes_leave_no_open_file(kind: RuntimeMaker, parent: Path) -> None:
    async def use(runtime: OwnedRuntime) -> None:
        await runtime.start()
        await asyncio.gather(*(runtime.run("echo x; (sleep 30 &)") for _ in range(3)))
        await runtime.write("file", b"x")
        await runtime.stop()

    await use(kind(parent=parent))
    before = open_files()
    await asyncio.gather(*(use(kind(parent=parent)) for _ in range(4)))
    assert open_files() == before
    assert nothing_is_left(parent)


async def test_folder_that_cannot_be_removed_is_named(parent: Path) -> None:
    home = Home(parent)
    made, home.path = home.path, parent / ("x" * 300)  # a name that every file system refuses
    with pytest.raises(RuntimeFailedError, match=f"remove {home.path} by hand"):
        await home.remove()
    assert await sweep(parent) == [made]  # nobody holds it any more


OWNER = """
import asyncio, json, sys
from pathlib import Path
from rollbook.tasks.runtimes import {kind}

async def main():
    runtime = {kind}(parent=Path(sys.argv[1]))
    await runtime.start()
    await runtime.run(f"setsid -f {{sys.argv[2]}}")
    running = asyncio.create_task(runtime.run(f"{{sys.argv[2]}}; true"))
    await runtime.run(f"setsid -f {{sys.argv[2]}}")
    print(json.dumps(str(runtime.folder)), flush=True)
    await running

asyncio.run(main())
"""


async def test_runtime_of_a_killed_owner_is_swept_with_its_processes(kind: type[OwnedRuntime], parent: Path) -> None:
    sleep = unique_sleep()
    script = textwrap.dedent(OWNER.format(kind=kind.__name__))
    owner = subprocess.Popen([sys.executable, "-c", script, str(parent), sleep], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        folder = Path(json.loads(await asyncio.to_thread(owner.stdout.readline)))
        await until_running(sleep, count=5)  # its own command line holds it too
        living = Home(parent)
        assert await sweep(parent) == []  # both have an owner
        assert folder.is_dir()
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate()
    swept = await sweep(parent)
    assert [folder.is_relative_to(path) for path in swept] == [True]
    assert running(sleep) == []
    assert list(parent.iterdir()) == [living.path]
    await living.remove()
    assert nothing_is_left(parent)
