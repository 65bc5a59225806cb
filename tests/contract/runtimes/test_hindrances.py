"""What programs do to those that come after them is a result of theirs, and no fault of the machine."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollbook.tasks.runtimes import RuntimeFailedError, SubprocessRuntime, UnsafePathError
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import executable, open_folder

REMOVED = 'cd / && rm -rf "$FOLDER"'
FILE = f'{REMOVED} && touch "$FOLDER"'
LINK = f'{REMOVED} && ln -s /nowhere "$FOLDER"'


async def hindered(runtime: OwnedRuntime, how: str) -> None:
    done = await runtime.run(how, env={"FOLDER": runtime.workdir})
    assert done.exit_code == 0, done


@pytest.mark.parametrize(("how", "why"), [(REMOVED, "is not there"), (FILE, "is no folder"), (LINK, "is no folder")])
async def test_command_without_its_working_folder_cannot_be_started_and_says_why(
    runtime: OwnedRuntime, how: str, why: str
) -> None:
    await hindered(runtime, how)
    done = await runtime.run("echo never")
    assert (done.exit_code, done.stdout, done.timed_out) == (126, b"", False)
    assert done.stderr.decode() == f"the command was not started: the folder {runtime.workdir} {why}\n"
    assert (await runtime.run("echo on", cwd="/")).stdout == b"on\n"


@pytest.mark.parametrize(
    ("how", "error"),
    [(REMOVED, FileNotFoundError), (FILE, NotADirectoryError), (LINK, (UnsafePathError, NotADirectoryError))],
)
async def test_files_of_a_working_folder_that_is_gone_are_missing(
    runtime: OwnedRuntime, how: str, error: type[Exception]
) -> None:
    await hindered(runtime, how)
    with pytest.raises(error):
        await runtime.read("answer.txt")


async def test_missing_folder_of_a_command_is_told_like_that_of_all(runtime: OwnedRuntime) -> None:
    done = await runtime.run("true", cwd="nowhere")
    assert done.exit_code == 126
    assert done.stderr.endswith(b"/nowhere is not there\n")


async def test_too_long_an_argument_cannot_be_started_and_says_what_to_do(runtime: OwnedRuntime) -> None:
    done = await runtime.run(["true", "x" * 200_000])
    assert done.exit_code == 126
    assert b"write the text to a file" in done.stderr
    assert (await runtime.run("true")).exit_code == 0


async def test_command_that_is_killed_before_it_starts_has_died_of_a_signal(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SubprocessRuntime(parent=parent)
    # As a program does that kills whatever it finds, when it comes between.
    executable(tmp_path / "setpriv", "#!/bin/sh\nkill -KILL $$\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await runtime.start()
    try:
        done = await runtime.run("true")
    finally:
        await runtime.stop()
    assert done.exit_code == 137
    assert b"kept the command from being started: killed by signal 9" in done.stderr


async def test_launcher_that_fails_by_itself_is_a_fault_of_the_machine(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SubprocessRuntime(parent=parent)
    executable(tmp_path / "setpriv", "#!/bin/sh\necho broken >&2\nexit 126\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await runtime.start()
    try:
        with pytest.raises(RuntimeFailedError, match=r"was not started \(exit code 126\): broken"):
            await runtime.run("true")
    finally:
        await runtime.stop()


LIMITED = """
import asyncio, sys
from pathlib import Path
from rollbook.tasks.runtimes import {kind}
from rollbook.tuning import allow_many_files

async def main():
    allow_many_files()
    runtime = {kind}(parent=Path(sys.argv[1]))
    await runtime.start()
    try:
        print((await runtime.run("ulimit -S -n; ulimit -H -n")).stdout.decode(), end="")
    finally:
        await runtime.stop()

asyncio.run(main())
"""


def test_programs_have_the_limit_on_open_files_that_the_runner_was_started_with(
    kind: type[OwnedRuntime], parent: Path
) -> None:
    prlimit = shutil.which("prlimit")
    assert prlimit is not None
    script = textwrap.dedent(LIMITED.format(kind=kind.__name__))
    with open_folder("limits") as cwd:
        done = subprocess.run(
            [prlimit, "--nofile=123:456", "--", sys.executable, "-c", script, str(parent)],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout.split() == ["123", "456"]
