"""Commands of a runtime: what they see, how they end, what is kept of what they say."""

import asyncio
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from rollbook.tasks.data import Resources
from rollbook.tasks.runtimes import borrowed
from rollbook.tasks.runtimes.base import Completed
from rollbook.tasks.runtimes.lifetime import OwnedRuntime
from tests.support.runtimes import RuntimeMaker, running, unique_sleep, until_none_runs, until_running


async def test_words_reach_the_program_as_they_are(runtime: OwnedRuntime) -> None:
    done = await runtime.run(["printf", "%s|", "two words", "$HOME", "'", ""])
    assert (done.exit_code, done.stdout) == (0, b"two words|$HOME|'||")


async def test_text_is_a_command_for_the_shell(runtime: OwnedRuntime) -> None:
    done = await runtime.run("for n in 1 2; do echo out $n; echo err $n >&2; done")
    assert (done.stdout, done.stderr) == (b"out 1\nout 2\n", b"err 1\nerr 2\n")


@pytest.mark.parametrize("command", ["exit 7", "sh -c 'exit 7'"])
async def test_exit_code_is_the_programs(runtime: OwnedRuntime, command: str) -> None:
    assert (await runtime.run(command)).exit_code == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_death_by_a_signal_is_128_and_its_number(runtime: OwnedRuntime, number: signal.Signals) -> None:
    done = await runtime.run(f"kill -{int(number)} $$")
    assert (done.exit_code, done.timed_out) == (128 + number, False)


async def test_missing_program_is_127_and_said_in_the_error_output(runtime: OwnedRuntime) -> None:
    done = await runtime.run(["no-such-program", "x"])
    assert done.exit_code == 127
    assert b"no-such-program" in done.stderr


async def test_file_that_is_no_program_is_126(runtime: OwnedRuntime) -> None:
    await runtime.write("plain", b"#!/bin/sh\n")
    assert (await runtime.run(["./plain"])).exit_code == 126


async def test_written_program_runs_where_its_mode_says_so(runtime: OwnedRuntime) -> None:
    await runtime.write("bin/tool", b"#!/bin/sh\necho $0\n", mode=0o755)
    assert (await runtime.run(["bin/tool"])).stdout == b"bin/tool\n"


async def test_empty_command_is_refused(runtime: OwnedRuntime) -> None:
    with pytest.raises(ValueError, match="name the program"):
        await runtime.run([])


async def test_input_is_empty_where_none_is_given(runtime: OwnedRuntime) -> None:
    assert (await runtime.run("cat; echo end")).stdout == b"end\n"


async def test_input_larger_than_a_pipe_arrives_whole(runtime: OwnedRuntime) -> None:
    data = bytes(range(256)) * 2_000
    done = await runtime.run(["wc", "-c"], stdin=data)
    assert done.stdout.split() == [b"512000"]


async def test_input_that_is_not_read_holds_nothing_up(runtime: OwnedRuntime) -> None:
    assert (await runtime.run("true", stdin=b"x" * 1_000_000)).exit_code == 0


async def test_variables_of_this_process_are_not_seen(runtime: OwnedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    monkeypatch.setenv("PYTHONPATH", "/of/the/host")
    monkeypatch.setenv("HOME", "/home/of-the-host")
    seen = (await runtime.run("env; cat /proc/self/environ; cat /proc/$PPID/environ 2>/dev/null")).stdout
    assert b"of-the-host" not in seen
    assert b"/of/the/host" not in seen


async def test_variables_of_the_call_replace_those_of_the_runtime(kind: RuntimeMaker) -> None:
    runtime = kind(env={"A": "runtime", "B": "runtime"})
    await runtime.start()
    try:
        done = await runtime.run('echo "$A $B"', env={"B": "call"})
    finally:
        await runtime.stop()
    assert done.stdout == b"runtime call\n"


async def test_variables_may_have_any_name_and_content(runtime: OwnedRuntime) -> None:
    given = {"A.B": "dots", "Q": 'it\'s "$HOME" `id`\n\\', "EMPTY": "", "n": "1", "IFS": "x"}
    done = await runtime.run(["env", "-0"], env=given)
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: seen.get(name) for name in given} == given


@pytest.mark.parametrize("name", ["", "A=B"])
async def test_what_is_no_name_of_a_variable_is_refused(runtime: OwnedRuntime, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a variable"):
        await runtime.run("true", env={name: "x"})


async def test_variables_are_in_no_command_line(runtime: OwnedRuntime) -> None:
    """Command lines can be read by every user of the machine."""
    sleep, secret = unique_sleep(), uuid4().hex
    command = asyncio.create_task(runtime.run(f"{sleep}; true", env={"SECRET": secret}))
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in await until_running(sleep, count=2)]
    assert not any(secret.encode() in line for line in lines)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command


async def test_program_may_have_a_name_like_an_assignment(runtime: OwnedRuntime) -> None:
    await runtime.write("a=b", b"#!/bin/sh\necho $1\n", mode=0o755)
    assert (await runtime.run(["./a=b", "x"])).stdout == b"x\n"


async def test_home_and_folder_for_temporary_files_can_be_written_to(runtime: OwnedRuntime) -> None:
    done = await runtime.run('touch "$HOME/a" "$(mktemp)" && echo well')
    assert done.stdout == b"well\n", done.stderr


async def test_command_starts_in_the_working_folder(runtime: OwnedRuntime) -> None:
    assert (await runtime.run(["pwd"])).stdout.decode().strip() == runtime.workdir


async def test_folder_of_a_command_is_taken_from_the_working_folder_on(runtime: OwnedRuntime) -> None:
    await runtime.write("a/b/file", b"")
    assert (await runtime.run("ls", cwd="a/b")).stdout == b"file\n"
    assert (await runtime.run("ls", cwd=f"{runtime.workdir}/a")).stdout == b"b\n"
    assert (await runtime.run("pwd", cwd="/")).stdout == b"/\n"


async def test_output_may_begin_like_the_launchers_own_word(runtime: OwnedRuntime) -> None:
    assert (await runtime.run(r"printf '\006\006' >&2")).stderr == b"\x06\x06"


async def test_end_of_a_flood_of_output_is_kept(kind: RuntimeMaker) -> None:
    runtime = kind(output_limit_bytes=1_000)
    await runtime.start()
    try:
        done = await runtime.run("seq 100000; seq 200000 >&2; echo last; echo last >&2")
    finally:
        await runtime.stop()
    out = "".join(f"{n}\n" for n in range(1, 100_001)) + "last\n"
    err = "".join(f"{n}\n" for n in range(1, 200_001)) + "last\n"
    assert (done.stdout.decode(), done.stdout_dropped) == (out[-1_000:], len(out) - 1_000)
    assert (done.stderr.decode(), done.stderr_dropped) == (err[-1_000:], len(err) - 1_000)


async def test_short_output_is_kept_whole(runtime: OwnedRuntime) -> None:
    done = await runtime.run("echo short")
    assert (done.stdout, done.stdout_dropped, done.stderr_dropped) == (b"short\n", 0, 0)


async def test_command_whose_time_is_over_ends_with_its_group(runtime: OwnedRuntime) -> None:
    sleep = unique_sleep()
    done = await runtime.run(f"echo before; {sleep} & {sleep}", timeout_sec=0.5)
    assert (done.timed_out, done.exit_code, done.stdout) == (True, 137, b"before\n")
    await until_none_runs(sleep)


async def test_cancelled_command_ends_with_its_group(runtime: OwnedRuntime) -> None:
    sleep = unique_sleep()
    cut: list[Completed] = []
    task = asyncio.create_task(
        borrowed(runtime).run(f"echo so far; {sleep} & sh -c '{sleep}; true'", on_cut=cut.append)
    )
    await until_running(sleep, count=3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_none_runs(sleep)
    assert cut == [Completed(137, b"so far\n")]
    assert (await runtime.run("echo on")).stdout == b"on\n"


async def test_command_that_ignores_signals_is_ended_too(runtime: OwnedRuntime) -> None:
    sleep = unique_sleep()
    task = asyncio.create_task(runtime.run(f"trap '' TERM INT HUP; {sleep}; {sleep}"))
    await until_running(sleep)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_none_runs(sleep)


async def test_stopped_command_is_ended_too(runtime: OwnedRuntime) -> None:
    sleep = unique_sleep()
    done = await runtime.run(f"kill -STOP $$; {sleep}", timeout_sec=0.5)
    assert done.timed_out
    assert running(sleep) == []


async def test_server_that_a_command_leaves_behind_serves_the_next(runtime: OwnedRuntime) -> None:
    serve = 'while [ ! -e stop ]; do echo "noise"; echo served > served; sleep 0.01; done'
    done = await runtime.run(f"({serve}) & echo started")
    assert done.stdout.endswith(b"started\n") or b"started\n" in done.stdout
    # It has written to the output of a command that is long over, and has not ended of it.
    waited = await runtime.run(
        "rm -f served; until [ -e served ]; do sleep 0.01; done; cat served; touch stop", timeout_sec=60
    )
    assert (waited.stdout, waited.timed_out) == (b"served\n", False)


async def test_commands_run_side_by_side(runtime: OwnedRuntime) -> None:
    # Each waits for what the other writes.
    first = runtime.run("touch a; until [ -e b ]; do sleep 0.01; done", timeout_sec=60)
    second = runtime.run("until [ -e a ]; do sleep 0.01; done; touch b", timeout_sec=60)
    done = await asyncio.gather(first, second)
    assert [(one.exit_code, one.timed_out) for one in done] == [(0, False), (0, False)]


async def test_memory_limit_holds_for_each_process(kind: RuntimeMaker) -> None:
    runtime = kind(resources=Resources(memory_mb=64))
    await runtime.start()
    try:
        much = await runtime.run("head -c 200000000 /dev/zero | tail -c 200000000 | wc -c")
        little = await runtime.run("head -c 200000 /dev/zero | tail -c 200000 | wc -c")
    finally:
        await runtime.stop()
    assert much.stdout.strip() != b"200000000"
    assert b"memory exhausted" in much.stderr
    assert little.stdout.strip() == b"200000"


async def test_resource_that_is_not_enforced_is_logged(kind: RuntimeMaker, caplog: pytest.LogCaptureFixture) -> None:
    runtime = kind(resources=Resources(memory_mb=64, cpus=1, disk_mb=5))
    await runtime.start()
    await runtime.stop()
    name = type(runtime).__name__
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} does not enforce resources.cpus",
        f"{name} does not enforce resources.disk_mb",
    ]
