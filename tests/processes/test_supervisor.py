"""Supervision with real processes: restarts, order, limits, and that nobody outlives the parent."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.supervisor import EX_CONFIG, EX_KILLED, ChildSpec, Supervisor

LIMIT_SEC = 60
PRELUDE = """
import os, signal, socket, sys, threading
board = int(os.environ["BOARD"])
def tell(what):
    os.write(board, f"{os.environ['NAME']} {os.getpid()} {what}\\n".encode())
def follow_lifeline():
    os.read(int(os.environ["ROLLBOOK_LIFELINE_FD"]), 1)
    os._exit(1)
threading.Thread(target=follow_lifeline, daemon=True).start()
def end(number, frame):
    tell(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""
OBEDIENT = f"{PRELUDE}\ntell('started')\nwhile True: signal.pause()"
STUBBORN = f"{PRELUDE}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('started')\nwhile True: signal.pause()"


class Board:
    """Where children write what they do, one line each: name, process id, what."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._buffer = b""

    async def line(self) -> tuple[str, int, str]:
        return await asyncio.to_thread(self.line_now)

    def line_now(self) -> tuple[str, int, str]:
        while b"\n" not in self._buffer:
            assert select.select([self._reader], [], [], LIMIT_SEC)[0], "no child wrote anything"
            self._buffer += os.read(self._reader, 4096)
        line, _, self._buffer = self._buffer.partition(b"\n")
        name, pid, what = line.decode().split(" ", 2)
        return name, int(pid), what

    async def wait_for(self, name: str, what: str) -> int:
        """The process id of whoever wrote that; lines of others before it are passed over."""
        while True:
            found, pid, said = await self.line()
            if (found, said) == (name, what):
                return pid

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.writer)


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.close()


@pytest.fixture
def reports() -> list[str]:
    return []


def child(
    board: Board, name: str, script: str = OBEDIENT, *, stop_limit_sec: float = 60.0, **descriptors: int
) -> ChildSpec:
    """A child with further descriptors, each under the name of an environment variable."""
    passed = {"BOARD": board.writer, **descriptors}
    return ChildSpec(
        name=name,
        command=(sys.executable, "-S", "-c", script),
        variables={"NAME": name, **{key: str(descriptor) for key, descriptor in passed.items()}},
        descriptors=tuple(passed.values()),
        stop_limit_sec=stop_limit_sec,
    )


def is_gone(pid: int) -> bool:
    """Whether a process ended and was reaped by its parent."""
    return not Path(f"/proc/{pid}").exists()


def wait_until_ended(pid: int) -> None:
    """Wait for the end of a process that need not be a child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], LIMIT_SEC)[0], f"process {pid} still runs"
    finally:
        os.close(descriptor)


async def ended(running: asyncio.Task[int]) -> int:
    return await asyncio.wait_for(running, LIMIT_SEC)


async def test_stop_ends_all_children_in_order_and_is_a_clean_end(board: Board, reports: list[str]) -> None:
    supervisor = Supervisor([child(board, "api"), child(board, "scheduler")], report=reports.append)
    running = asyncio.create_task(supervisor.run())
    assert {(await board.line())[0] for _ in range(2)} == {"api", "scheduler"}
    pids = [supervisor.pid("api"), supervisor.pid("scheduler")]

    supervisor.stop()

    assert await ended(running) == 0
    assert {(await board.line())[2], (await board.line())[2]} == {"SIGTERM"}
    assert all(pid is not None and is_gone(pid) for pid in pids)
    assert reports == []


async def test_child_that_was_killed_is_started_again_and_the_other_is_left_alone(
    board: Board, reports: list[str]
) -> None:
    supervisor = Supervisor([child(board, "api"), child(board, "scheduler")], report=reports.append)
    running = asyncio.create_task(supervisor.run())
    await board.line()
    await board.line()
    first, other = supervisor.pid("api"), supervisor.pid("scheduler")
    assert first is not None

    os.kill(first, signal.SIGKILL)
    second = await board.wait_for("api", "started")

    assert second != first
    assert is_gone(first)
    assert supervisor.pid("scheduler") == other
    assert reports == ["the api process was killed by SIGKILL; starting it again in 0.1 s"]
    supervisor.stop()
    assert await ended(running) == 0


async def test_child_that_ends_by_itself_is_started_again(board: Board, reports: list[str]) -> None:
    supervisor = Supervisor([child(board, "api", f"{PRELUDE}\ntell('started')\nsys.exit(3)")], report=reports.append)
    running = asyncio.create_task(supervisor.run())
    for _ in range(3):
        await board.wait_for("api", "started")
    supervisor.stop()
    assert await ended(running) == 0
    assert reports[:2] == [
        "the api process ended with code 3; starting it again in 0.1 s",
        "the api process ended with code 3; starting it again in 0.2 s",
    ]


async def test_connections_wait_for_the_next_child_on_the_same_listening_socket(board: Board) -> None:
    serving = f"""{PRELUDE}
listener = socket.socket(fileno=int(os.environ["LISTENER"]))
tell("started")
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spec = child(board, "api", serving, LISTENER=listener.fileno())
        supervisor = Supervisor([spec], report=lambda _line: None)
        running = asyncio.create_task(supervisor.run())
        first = await board.wait_for("api", "started")
        os.kill(first, signal.SIGKILL)
        wait_until_ended(first)

        reader, writer = await asyncio.open_connection(*listener.getsockname())
        answer = await asyncio.wait_for(reader.read(), LIMIT_SEC)
        writer.close()

        assert int(answer) == await board.wait_for("api", "started")
        supervisor.stop()
        await ended(running)


async def test_child_that_cannot_work_ends_everything_with_its_code(board: Board, reports: list[str]) -> None:
    hopeless = f"{PRELUDE}\nos.read(int(os.environ['GO']), 1)\nsys.exit({EX_CONFIG})"
    go_reader, go_writer = os.pipe()
    spec = child(board, "scheduler", hopeless, GO=go_reader)
    supervisor = Supervisor([child(board, "api"), spec], report=reports.append)
    running = asyncio.create_task(supervisor.run())
    await board.wait_for("api", "started")
    os.write(go_writer, b"!")

    assert await ended(running) == EX_CONFIG
    assert (await board.line())[2] == "SIGTERM"
    assert reports == []
    os.close(go_reader)
    os.close(go_writer)


async def test_child_that_overstays_its_limit_is_killed_and_named(board: Board, reports: list[str]) -> None:
    supervisor = Supervisor([child(board, "api", STUBBORN, stop_limit_sec=0.2)], report=reports.append)
    running = asyncio.create_task(supervisor.run())
    pid = await board.wait_for("api", "started")
    supervisor.stop()
    assert await ended(running) == EX_KILLED
    assert is_gone(pid)
    assert reports == ["the api process did not end within 0.2 s; killing it"]


async def test_kill_ends_stubborn_children_at_once(board: Board) -> None:
    supervisor = Supervisor([child(board, "api", STUBBORN, stop_limit_sec=3600)])
    running = asyncio.create_task(supervisor.run())
    pid = await board.wait_for("api", "started")
    supervisor.stop()
    supervisor.kill()
    assert await ended(running) == EX_KILLED
    assert is_gone(pid)


async def test_cancelled_supervisor_leaves_no_child(board: Board) -> None:
    supervisor = Supervisor([child(board, "api", STUBBORN), child(board, "scheduler", STUBBORN)])
    running = asyncio.create_task(supervisor.run())
    pids = [(await board.line())[1], (await board.line())[1]]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all(map(is_gone, pids))


async def test_command_that_cannot_be_started_is_tried_again(reports: list[str]) -> None:
    retried = asyncio.Event()

    def report(line: str) -> None:
        reports.append(line)
        if len(reports) == 2:
            retried.set()

    supervisor = Supervisor([ChildSpec(name="api", command=("/nonexistent/program",))], report=report)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(retried.wait(), LIMIT_SEC)
    supervisor.stop()
    assert await ended(running) == 0
    assert reports[0].startswith("the api process could not be started (")


PARENT = """
import asyncio, json, os, signal, sys
from rollbook.supervisor import ChildSpec, Supervisor, stopped_by_signals

async def main():
    board = int(os.environ["BOARD"])
    supervisor = Supervisor([
        ChildSpec(name=name, command=(sys.executable, "-S", "-c", script),
                  variables={"NAME": name}, descriptors=(board,), stop_limit_sec=3600)
        for name, script in json.loads(sys.argv[1]).items()
    ])
    def stop():
        supervisor.stop()
        os.write(board, f"parent {os.getpid()} stopping\\n".encode())
    with stopped_by_signals(stop=stop, kill=supervisor.kill):
        return await supervisor.run()

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
sys.exit(asyncio.run(main()))
"""


def start_parent(board: Board, children: str, *, group: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, children],
        env={**os.environ, "BOARD": str(board.writer)},
        pass_fds=(board.writer,),
        process_group=0 if group else None,
    )


def scripts(**children: str) -> str:
    return json.dumps(children)


def test_children_of_a_killed_parent_end(board: Board) -> None:
    parent = start_parent(board, scripts(api=STUBBORN, scheduler=STUBBORN))
    pids = [board.line_now()[1], board.line_now()[1]]
    parent.kill()
    parent.wait(LIMIT_SEC)
    for pid in pids:
        wait_until_ended(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_parent_stops_the_children_cleanly(board: Board, number: signal.Signals) -> None:
    parent = start_parent(board, scripts(api=OBEDIENT, scheduler=OBEDIENT))
    pids = [board.line_now()[1], board.line_now()[1]]
    parent.send_signal(number)
    assert parent.wait(LIMIT_SEC) == 0
    assert sorted(board.line_now()[2] for _ in range(3)) == ["SIGTERM", "SIGTERM", "stopping"]
    assert all(map(is_gone, pids))


def test_interrupt_at_the_terminal_reaches_the_parent_alone(board: Board) -> None:
    # A child that got the terminal's SIGINT itself would die of it, since it handles SIGTERM only.
    parent = start_parent(board, scripts(api=OBEDIENT), group=True)
    board.line_now()
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(LIMIT_SEC) == 0
    assert sorted(board.line_now()[2] for _ in range(2)) == ["SIGTERM", "stopping"]


def test_second_interrupt_kills_and_a_second_sigterm_does_not(board: Board) -> None:
    parent = start_parent(board, scripts(api=STUBBORN))
    pid = board.line_now()[1]
    parent.send_signal(signal.SIGTERM)
    assert board.line_now()[2] == "stopping"
    parent.send_signal(signal.SIGTERM)
    assert not is_gone(pid)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(LIMIT_SEC) == EX_KILLED
    assert is_gone(pid)
