"""`rollbook serve` and `rollbook scheduler` as users start them: ready, restarted, stopped, and nobody left behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from rollbook.ledger.database import database_of
from rollbook.ledger.urls import DEFAULT_DATABASE_URL, POSTGRES, SQLITE, parse_url
from rollbook.settings import DATABASE_VARIABLE
from rollbook.supervisor import EX_CONFIG, EX_KILLED
from rollbook_client import RolloutClient
from tests.support.commands import environment, outcome, start
from tests.support.databases import NewLedger

LIMIT_SEC = 60
STOPPED = "rollbook: stopped\n"
WAITING = "rollbook: waiting up to 10 s for running rollouts; press Ctrl-C again to end at once\n"
FLOW = """
from rollbook import AgentWorkflow, Grader

class Echo(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]

class Full(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""
ENDLESS = """
import asyncio
from rollbook import AgentWorkflow

class Endless(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.Event().wait()
"""


@pytest.fixture
def folder(database: str, new_ledger: NewLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where commands run. On SQLite they are told nothing of a ledger, and make theirs."""
    (tmp_path / "flow.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        if database == POSTGRES:
            monkeypatch.setenv(DATABASE_VARIABLE, stack.enter_context(new_ledger(database, tmp_path)))
        yield tmp_path


@pytest.fixture
def place(folder: Path) -> str:
    """How commands name the ledger."""
    return database_of(parse_url(os.environ.get(DATABASE_VARIABLE, DEFAULT_DATABASE_URL))).describe()


# What has nothing to do with how the ledger is kept: one database is enough.
on_a_file = pytest.mark.parametrize("database", [SQLITE], indirect=True)


class Server:
    """A started `rollbook serve`, once it said that it is ready."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = start("serve", *arguments, "--port", "0", env=environment(**variables))
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        if not self.ready_line:
            raise AssertionError(f"serve ended: {outcome(self.process)}")
        self.url = self.ready_line.split()[3]
        self.pids = {self.process.pid}

    def child(self, module: str) -> int:
        """The process id of a child, by the module that it runs."""
        found = [pid for pid in children(self.process.pid) if module in command_line(pid)]
        assert len(found) == 1
        return found[0]

    def note_family(self) -> None:
        """Remember every process that belongs to it now, so that none is overlooked later."""
        self.pids |= descendants(self.process.pid)

    async def run_rollout(self, rollout_id: str) -> str:
        async with httpx.AsyncClient(verify=False) as http:
            client = RolloutClient(url=self.url, http_client=http)
            result = await client.run_rollout(
                initial_messages=[{"role": "user", "content": "hello"}],
                chat_completions_url="http://127.0.0.1:9/",
                rollout_id=rollout_id,
                label="any",
            )
        return result.status

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and what it wrote on stderr after a signal; every process of it has ended."""
        self.note_family()
        self.process.send_signal(number)
        ended = outcome(self.process)
        wait_until_ended(self.pids)
        assert ended.out == STOPPED  # nothing ran, so nothing was waited for
        return ended.code, ended.err


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server("flow.py")
    yield server
    server.process.kill()
    server.process.communicate(timeout=LIMIT_SEC)


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in text.split()]


def descendants(pid: int) -> set[int]:
    found = set(children(pid))
    for child in list(found):
        found |= descendants(child)
    return found


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def wait_until_ended(pids: set[int]) -> None:
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], LIMIT_SEC)[0], f"process {pid} still runs"
        finally:
            os.close(descriptor)


async def test_serve_says_where_it_listens_runs_rollouts_and_ends_cleanly_when_interrupted(
    server: Server, place: str
) -> None:
    assert server.ready_line == f"rollbook: listening on {server.url} (queue flow, ledger {place})\n"
    assert await server.run_rollout("r-1") == "success"
    assert server.end(signal.SIGINT) == (0, "")


async def test_killed_api_comes_back_on_its_port_and_refuses_nobody(server: Server) -> None:
    first = server.child("rollbook.server")
    async with httpx.AsyncClient(timeout=LIMIT_SEC, verify=False) as http:
        before = (await http.get(f"{server.url}/health")).json()["process_id"]
        os.kill(first, signal.SIGKILL)
        wait_until_ended({first})
        async with httpx.AsyncClient(timeout=LIMIT_SEC, verify=False) as fresh:
            after = (await fresh.get(f"{server.url}/health")).json()["process_id"]
    assert after != before
    assert server.child("rollbook.server") != first
    assert await server.run_rollout("r-1") == "success"
    code, said = server.end()
    assert code == 0
    assert said == "rollbook: the api process was killed by SIGKILL; starting it again in 0.1 s\n"


async def test_killed_scheduler_comes_back_and_works_on(server: Server) -> None:
    assert await server.run_rollout("r-1") == "success"
    first = server.child("rollbook.scheduler")
    server.note_family()
    os.kill(first, signal.SIGKILL)
    assert await server.run_rollout("r-2") == "success"
    assert server.child("rollbook.scheduler") != first
    code, said = server.end()
    assert code == 0
    assert "rollbook: the scheduler process was killed by SIGKILL; starting it again in 0.1 s\n" in said


async def test_nobody_outlives_a_killed_serve(server: Server) -> None:
    assert await server.run_rollout("r-1") == "success"
    server.note_family()
    assert len(server.pids) >= 4  # serve, API, scheduler, runner
    server.process.kill()
    server.process.wait(LIMIT_SEC)
    wait_until_ended(server.pids)


@on_a_file
@pytest.mark.parametrize(
    ("command", "source", "says"),
    [
        ("serve", "import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("scheduler", "x = 1", "flow.py"),
    ],
)
def test_entrypoint_that_cannot_be_loaded_ends_the_command_with_the_reason(
    folder: Path, command: str, source: str, says: str
) -> None:
    (folder / "flow.py").write_text(source)
    ended = outcome(start(command, "flow.py", *(("--port", "0") if command == "serve" else ())))
    assert (ended.code, ended.out) == (EX_CONFIG, ""), "it said that it was ready"
    assert says in ended.error_line


NEEDY = """
from rollbook import ExecutionBackend
from rollbook.backends.errors import MachineError

class Needy(ExecutionBackend):
    async def check(self):
        raise MachineError("no sandbox can be made here; install the package `bubblewrap`")

    async def execute(self, request):
        raise NotImplementedError

backend = Needy()
"""


@on_a_file
@pytest.mark.parametrize("command", ["serve", "scheduler"])
def test_machine_that_cannot_run_the_entrypoint_is_told_before_anything_is_taken(folder: Path, command: str) -> None:
    (folder / "needy.py").write_text(NEEDY)
    ended = outcome(start(command, "needy.py:backend", *(("--port", "0") if command == "serve" else ())))
    assert (ended.code, ended.out) == (EX_CONFIG, "")
    assert ended.error_line == (
        "needy.py:backend: this machine cannot run it: no sandbox can be made here; install the package `bubblewrap`"
    )


@on_a_file
def test_help_names_the_forms_of_an_entrypoint(folder: Path) -> None:
    for command in ("serve", "scheduler"):
        told = " ".join(outcome(start(command, "--help")).out.split())
        assert all(form in told for form in ("FILE.py with one workflow", "FILE.py:NAME", "MODULE:NAME")), told


@on_a_file
def test_file_that_is_not_there_is_told_before_anything_is_made(folder: Path) -> None:
    for arguments in (("serve", "missing.py"), ("serve", "missing.py:backend"), ("scheduler", "missing.py")):
        ended = outcome(start(*arguments))
        assert (ended.code, ended.out) == (EX_CONFIG, "")
        assert ended.error_line == "missing.py: there is no such file; check the path"
    assert not (folder / ".rollbook").exists()


async def test_api_and_scheduler_run_apart(folder: Path, place: str) -> None:
    server = Server("--no-scheduler", "--queue", "flow")
    assert children(server.process.pid) == []
    scheduler = start("scheduler", "flow.py")
    assert scheduler.stdout is not None
    try:
        ready = f"rollbook: scheduler ready (queue flow, entrypoint flow.py, ledger {place})\n"
        assert scheduler.stdout.readline() == ready
        assert await server.run_rollout("r-1") == "success"
        family = descendants(scheduler.pid)
        scheduler.send_signal(signal.SIGTERM)
        ended = outcome(scheduler)
        assert (ended.code, ended.out) == (0, STOPPED)
        wait_until_ended(family)
        assert server.end() == (0, "")
    finally:
        kill(scheduler)
        kill(server.process)


@on_a_file
@pytest.mark.parametrize("apart", [False, True], ids=["serve", "scheduler"])
async def test_operator_is_told_what_is_waited_for_and_can_end_it_at_once(folder: Path, apart: bool) -> None:
    (folder / "flow.py").write_text(ENDLESS)
    server = Server(*(("--no-scheduler", "--queue", "flow") if apart else ("flow.py",)))
    working = start("scheduler", "flow.py") if apart else server.process
    assert working.stdout is not None
    try:
        async with httpx.AsyncClient(verify=False) as http:
            handle = await RolloutClient(url=server.url, http_client=http).run_rollout_async(
                initial_messages=[], chat_completions_url="http://127.0.0.1:9/", rollout_id="r-1"
            )
            await asyncio.wait_for(handle.wait_for_running(), LIMIT_SEC)
            handle.cancel()
        family = descendants(working.pid)
        if apart:
            assert "scheduler ready" in working.stdout.readline()
        working.send_signal(signal.SIGINT)
        assert working.stdout.readline() == WAITING
        working.send_signal(signal.SIGINT)
        ended = outcome(working)
        assert (ended.code, ended.out) == (EX_KILLED, STOPPED)
        wait_until_ended(family)
    finally:
        kill(working)
        kill(server.process)


async def test_killed_scheduler_command_leaves_nobody_behind(folder: Path) -> None:
    scheduler = start("scheduler", "flow.py")
    assert scheduler.stdout is not None
    assert "scheduler ready" in scheduler.stdout.readline()
    family = descendants(scheduler.pid)
    assert len(family) >= 2  # scheduler, runner
    kill(scheduler)
    wait_until_ended(family)


@on_a_file
async def test_api_key_is_asked_for_and_read_from_the_named_variable(folder: Path) -> None:
    server = Server("--no-scheduler", "--queue", "q", "--api-key-env", "TRAINER_KEY", TRAINER_KEY="open sesame")
    try:
        async with httpx.AsyncClient(base_url=server.url, verify=False) as http:
            assert (await http.get("/health")).status_code == 401
            allowed = await http.get("/health", headers={"Authorization": "Bearer open sesame"})
            assert allowed.status_code == 200
    finally:
        kill(server.process)


@on_a_file
@pytest.mark.parametrize("apart", [True, False])
async def test_operator_is_told_of_an_api_that_anybody_can_use(folder: Path, apart: bool) -> None:
    server = Server("--host", "0.0.0.0", *(("--no-scheduler", "--queue", "flow") if apart else ("flow.py",)))
    said = "rollbook: this API has no key: whoever reaches 0.0.0.0 can use it; give it one with --api-key-env\n"
    assert server.end() == (0, said)


@on_a_file
async def test_files_in_the_current_folder_do_not_pass_for_libraries(folder: Path) -> None:
    (folder / "litestar.py").write_text("raise SystemExit('the wrong litestar')")
    server = Server("flow.py")
    try:
        assert await server.run_rollout("r-1") == "success"
        assert server.end() == (0, "")
    finally:
        kill(server.process)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=LIMIT_SEC)
