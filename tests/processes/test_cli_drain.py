"""`rollbook drain`: closes admission, tells what is left until all is done, and opens again."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from rollbook.ledger.secrets import KEY_VARIABLE
from rollbook.settings import DATABASE_VARIABLE
from tests.support import ledger as make
from tests.support.commands import CommandLine, start
from tests.support.databases import SECRET_KEY

LIMIT_SEC = 60
QUEUE = make.QUEUE


@pytest.fixture
def rollbook(database_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    monkeypatch.setenv(KEY_VARIABLE, SECRET_KEY)
    return CommandLine(database_url, capfd)


class Draining:
    """A started `rollbook drain`, and what it says as it says it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self._pipe = process.stdout.fileno()
        self._said = b""

    def line(self) -> str:
        """Its next line; a process that says nothing fails the test."""
        while b"\n" not in self._said:
            assert self._more(), "it ended"
        line, self._said = self._said.split(b"\n", 1)
        return line.decode()

    def end(self) -> tuple[int, list[str]]:
        """Its exit code, once it has ended, and the lines until then."""
        while self._more():
            continue
        return self._process.wait(LIMIT_SEC), self._said.decode().splitlines()

    def _more(self) -> bool:
        ready, _, _ = select.select([self._pipe], [], [], LIMIT_SEC)
        assert ready, "it says nothing"
        part = os.read(self._pipe, 65_536)
        self._said += part
        return bool(part)


@pytest.fixture
def drain(rollbook: CommandLine) -> Iterator[Callable[..., Draining]]:
    """Starts `rollbook drain` as a process; none outlives the test."""
    with ExitStack() as started:

        def run(*arguments: str) -> Draining:
            process = started.enter_context(start("drain", *arguments))
            started.callback(process.kill)
            return Draining(process)

        yield run


def admits(writer: make.Writing, rollout_id: str, *, queue: str = QUEUE) -> bool:
    (answer,) = writer.batch(make.admit(rollout_id, queue=queue))
    return not isinstance(answer, Exception)


def test_idle_ledger_is_drained_at_once_and_stays_closed_until_opened(
    rollbook: CommandLine, writer: make.Writing
) -> None:
    drained = rollbook("drain")
    closed, idle = drained.out.splitlines()
    assert drained.code == 0
    assert closed.startswith("admission to the ledger is closed since 20")
    assert "@" in closed
    assert closed.endswith("open it again with `rollbook drain --off`")
    assert idle == "idle: nothing is queued or running"
    assert not admits(writer, "r-1")
    assert rollbook("drain", "--off").out == "admission is open again\n"
    assert admits(writer, "r-1")
    assert rollbook("drain", "--off").out == "admission was not closed\n"


def test_it_waits_for_what_is_queued_and_running_and_tells_each_change(
    drain: Callable[..., Draining], writer: make.Writing
) -> None:
    writer.batch(make.admit("r-1"), make.admit("r-2"))
    process = drain("--json")
    assert json.loads(process.line())["event"] == "closed"
    assert json.loads(process.line()) == {"event": "active", "queued": 2, "running": 0, "schedulers": 0}
    writer.batch(make.scheduler())
    writer.batch(make.claim())
    while json.loads(told := process.line())["running"] != 2:
        continue
    assert json.loads(told)["event"] == "active"
    writer.batch(make.finish("r-1"), make.finish("r-2"))
    code, lines = process.end()
    assert code == 0
    last = json.loads(lines[-1])
    assert (last["event"], last["queued"], last["running"]) == ("idle", 0, 0)


def test_not_waiting_tells_what_is_left(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.admit("r-1"))
    told = rollbook("drain", "--no-wait")
    assert told.code == 0
    assert told.out.splitlines()[1:] == ["1 queued, 0 running; no scheduler is alive to run them"]
    assert not admits(writer, "r-2")


def test_limit_ends_the_wait_and_leaves_admission_closed(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.admit("r-1"))
    told = rollbook("drain", "--timeout", "0.1")
    assert told.code == 1
    assert told.out.splitlines()[-1] == "not idle in time; admission stays closed, wait on with `rollbook drain`"
    assert not admits(writer, "r-2")


def test_somebody_who_opens_meanwhile_ends_the_wait(
    rollbook: CommandLine, drain: Callable[..., Draining], writer: make.Writing
) -> None:
    writer.batch(make.admit("r-1"))
    process = drain()
    assert process.line().startswith("admission to the ledger is closed")
    assert rollbook("drain", "--off").code == 0
    code, lines = process.end()
    assert code == 1
    assert lines[-1] == "somebody opened admission again meanwhile; nothing is drained"


def test_one_queue_is_closed_waited_for_and_opened_alone(rollbook: CommandLine, writer: make.Writing) -> None:
    writer.batch(make.admit("r-1", queue="busy"))
    drained = rollbook("drain", "--queue", "calm", "--json")
    closed, idle = drained.json_lines
    assert drained.code == 0
    assert (closed["event"], closed["queue"], idle["event"]) == ("closed", "calm", "idle")
    assert admits(writer, "r-2", queue="busy")
    assert not admits(writer, "r-3", queue="calm")
    assert rollbook("drain", "--no-wait").code == 0
    opened = rollbook("drain", "--off", "--queue", "calm")
    assert opened.out == "admission is open again\nstill closed: the whole ledger\n"
    (both,) = rollbook("drain", "--off", "--json").json_lines
    assert both == {"event": "opened", "closures_ended": 1, "still_closed": []}


def test_repeated_drain_tells_who_closed_it_first(rollbook: CommandLine) -> None:
    first = rollbook("drain", "--json").json_lines[0]
    assert rollbook("drain", "--json").json_lines[0] == first


@pytest.mark.parametrize("arguments", [("--queue", " "), ("--timeout", "-1")])
def test_wrong_options_are_named(rollbook: CommandLine, arguments: tuple[str, str]) -> None:
    refused = rollbook("drain", *arguments)
    assert refused.code == 2
    assert arguments[0] in refused.error_line
